"""Is a complete config one that can be trained? Types and ranges, before anything starts.

Each complaint is a ValueError of one line: the key, its value, and what is allowed.
"""

import dataclasses
import difflib
import inspect
import math
import typing
from collections.abc import Mapping
from typing import Any

from byov_jax import networks
from byov_jax.bayes.temperature import NORMALIZERS
from byov_jax.data.records import ON_ERROR
from byov_jax.distributed import runner
from byov_jax.images.views import View
from byov_jax.training import build

PRNGS = ("rbg", "threefry2x32", "unsafe_rbg")


def check(config: Mapping[str, Any], *, devices: int = 1) -> None:
    """Raises ValueError if `config`, complete and with its data filled in, cannot be trained.

    Args:
      config: from `recipe.complete`.
      devices: among which each batch is divided.
    """
    _check_types(build.DEFAULTS, config, "")
    for key, (value, allowed) in _choices(config).items():
        _require(key, value, value in allowed, f"one of {', '.join(sorted(allowed))}")
    for section, fields in _fields(config).items():
        _check_fields(section, config[section], fields)
    _check_ranges(config)
    _check_stream(config)
    _check_schedules(config)
    _check_batch(config, devices)


def _check_types(defaults: Mapping[str, Any], config: Mapping[str, Any], prefix: str) -> None:
    for key, default in defaults.items():
        value = config[key]
        if isinstance(default, Mapping):
            _check_types(default, value, f"{prefix}{key}.")
        else:
            kind = type(default)
            _require(prefix + key, value, _is(value, kind), _KINDS[kind])


def _choices(config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    allowed = {
        "method": build.METHODS,
        "prior": build.PRIORS,
        "kl_norm": NORMALIZERS,
        "dtype": build.FLOATS,
        "prng": PRNGS,
    }
    return {
        **{key: (config[key], values) for key, values in allowed.items()},
        "parallel.mode": (config["parallel"]["mode"], runner.MODES),
        "data.loader": (config["data"]["loader"], build.LOADERS),
        "data.on_error": (config["data"]["on_error"], ON_ERROR),
    }


def _fields(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What may stand in each open section, with its type."""
    for key, allowed in (
        ("encoder", ("vit", "resnet")),
        ("views", build.VIEWS),
        ("optimizer", build.OPTIMIZERS),
    ):
        name = config[key]["name"]
        _require(f"{key}.name", name, name in tuple(allowed), f"one of {', '.join(sorted(allowed))}")
    vit = config["encoder"]["name"] == "vit"
    encoder = _hints(networks.ViT) | {"size": str} if vit else _hints(networks.ResNet) | {"depth": int}
    optimizer = inspect.signature(build.OPTIMIZERS[config["optimizer"]["name"]], eval_str=True).parameters
    arguments = {name: parameter.annotation for name, parameter in optimizer.items()}
    return {
        "encoder": encoder,
        "views": _hints(View),
        "optimizer": arguments | {"learning_rate": float, "warmup": int},
    }


def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    # Flax adds the first two; the others are the config's own keys, for the whole network.
    own = {field.name for field in dataclasses.fields(kind)} - {"parent", "name", "dtype", "axis_name"}
    return {name: hints[name] for name in own}


def _check_fields(section: str, values: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key == "name":
            continue
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            hint = (
                f"did you mean {section}.{close[0]}?" if close else f"there are {', '.join(sorted(fields))}"
            )
            raise ValueError(f"config has no key {section}.{key}: {hint}")
        choices = typing.get_args(fields[key])
        if type(None) in choices and value is None:
            continue
        is_tuple = typing.get_origin(fields[key]) is tuple
        kinds = [tuple] if is_tuple else [kind for kind in choices or (fields[key],) if kind in _KINDS]
        if kinds:
            _require(f"{section}.{key}", value, _is(value, kinds[0]), _KINDS[kinds[0]])


def _check_ranges(config: Mapping[str, Any]) -> None:
    for key in ("steps", "batch_size", "accumulate", "draws", "log_every"):
        _require(key, config[key], config[key] >= 1, "at least 1")
    for key in (
        "seed",
        "beta_start",
        "beta_end",
        "beta_steps",
        "monitor_images",
        "monitor_every",
        "save_every",
        "watchdog",
    ):
        _require(key, config[key], config[key] >= 0, "0 or more")
    _require("seed", config["seed"], config["seed"] < 2**32, "below 2**32")
    _require("tau", config["tau"], 0.0 <= config["tau"] <= 1.0, "in [0, 1]: the momentum of the teacher")
    _require("log_var", config["log_var"], -100.0 <= config["log_var"] <= 10.0, "in [-100, 10]")
    data = config["data"]
    _require("data.resize", data["resize"], data["resize"] >= 0, "0 or more")
    _require("data.workers", data["workers"], data["workers"] >= -1, "0 or more, or -1 for what suits")
    for section, key, least in (
        ("guard", "patience", 1),
        ("guard", "spike", 0),
        ("keep", "last", 1),
        ("keep", "every", 0),
    ):
        value = config[section][key]
        _require(f"{section}.{key}", value, value >= least, f"{least} or more")
    _check_encoder(config["encoder"])
    _check_optimizer(config["optimizer"])
    for part in ("projector", "predictor"):
        _require_counts(f"{part}.widths", config[part]["widths"])


def _check_encoder(encoder: Mapping[str, Any]) -> None:
    for key in ("patch", "width", "depth", "heads", "mlp_width"):
        value = encoder.get(key)
        _require(f"encoder.{key}", value, value is None or value >= 1, "at least 1")
    if "stages" in encoder:
        _require_counts("encoder.stages", encoder["stages"])


def _check_optimizer(optimizer: Mapping[str, Any]) -> None:
    for key, value in optimizer.items():
        if key in ("learning_rate", "eps", "trust_coefficient"):
            _require(f"optimizer.{key}", value, value > 0.0, "positive")
        elif key in ("b1", "b2", "momentum"):
            _require(f"optimizer.{key}", value, 0.0 <= value < 1.0, "in [0, 1)")


def _check_stream(config: Mapping[str, Any]) -> None:
    data, size = config["data"], build.views(config).first.size
    if data["loader"] == "stream":
        _require("data.resize", data["resize"], data["resize"] == 0, "0: streamed images are cropped")
        positive = size is not None and size > 0
        _require("views.size", size, positive, "the side of the crops that data.loader='stream' takes")


def _check_schedules(config: Mapping[str, Any]) -> None:
    steps, warmup, annealing = config["steps"], config["optimizer"]["warmup"], config["beta_steps"]
    _require("optimizer.warmup", warmup, warmup >= 0, "0 or more")
    _require("optimizer.warmup", warmup, warmup < steps, f"shorter than the training of {steps} steps")
    reached = annealing <= steps
    _require(
        "beta_steps",
        annealing,
        reached,
        f"at most {steps}, the steps there are, or beta_end is never reached",
    )


def _check_batch(config: Mapping[str, Any], devices: int) -> None:
    batch, accumulate, size = config["batch_size"], config["accumulate"], config["data"]["size"]
    _require("batch_size", batch, batch <= size, f"at most the {size} training images")
    plural = "s" if devices > 1 else ""
    _require("batch_size", batch, batch % devices == 0, f"a multiple of the {devices} device{plural}")
    _require("accumulate", accumulate, batch % accumulate == 0, f"a divisor of batch_size={batch}")
    supervised = config["method"].startswith("supervised")
    if supervised and config["data"]["classes"] < 1:
        raise ValueError(
            f"config.method={config['method']!r} needs labels, and {config['data']['source']} has none: "
            "choose byol or byov, or arrange the images as train/CLASS/*.jpg"
        )


_KINDS = {
    bool: "True or False",
    int: "an integer",
    float: "a finite number",
    str: "a word",
    tuple: "numbers with commas between them",
}


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _require_counts(key: str, values: tuple) -> None:
    positive = len(values) > 0 and all(_is(value, int) and value > 0 for value in values)
    _require(key, values, positive, "one or more positive integers")


def _require(key: str, value: Any, valid: bool, allowed: str) -> None:
    if not valid:
        raise ValueError(f"config.{key}={value!r} must be {allowed}")
