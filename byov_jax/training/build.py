"""From a config to a method: the one place where names in a config become networks, views and schedules.

A config is a plain nested dict that JSON can hold; `DEFAULTS` lists every key. What a run was trained
with lies beside it as `config.json`, and the same functions rebuild its network.
"""

import copy
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from byov_jax import distributed, images, methods, networks
from byov_jax.bayes import priors
from byov_jax.distributed import Runner
from byov_jax.images.views import Views
from byov_jax.methods import Method, optimizers, schedules
from byov_jax.methods.layout import Layout
from byov_jax.methods.objectives import Batch

DEFAULTS: dict[str, Any] = {
    "method": "byov",  # byol | byov | supervised | supervised_bbb
    "seed": 0,
    "steps": 1000,
    "batch_size": 256,
    "accumulate": 1,
    "dtype": "float32",  # what the network computes in: float32 | bfloat16 | float16
    "prng": "threefry2x32",  # threefry2x32 | rbg | unsafe_rbg
    "parallel": {
        "mode": "auto",  # plain | sharded | pmap; auto is sharded over all devices
        "one_draw": False,  # under pmap, the same weights on all devices
    },
    "data": {
        "source": "fashion_mnist",  # embedded; or a folder, an .npz file, tfds:NAME
        "loader": "memory",  # memory | stream: decode and crop on the host, for what does not fit in memory
        "workers": -1,  # processes that decode, for stream: 0 for threads alone, -1 for what suits the cores
        "on_error": "replace",  # | raise: what stream does with an image that cannot be read
        "resize": 0,  # side to which a folder's images are resized; 0 leaves them as they are
        "size": 0,  # this and the next three are filled in from the data
        "image": (),
        "classes": 0,
        "digest": "",  # of the images' names, or pixels, and of the labels: other data, other digest
    },
    "encoder": {"name": "vit"},  # vit | resnet, and the fields of networks.vit(...) or networks.resnet(...)
    "projector": {"widths": (4096, 256), "norm": "batch"},
    "predictor": {"widths": (4096, 256), "norm": "batch"},
    "views": {"name": "small_gray"},  # imagenet | small_color | small_gray, and fields of views.View
    "optimizer": {"name": "adamw", "learning_rate": 1e-3, "warmup": 0},  # adamw | lars, and their arguments
    "prior": "standard",  # standard | teacher_mean | teacher_moments
    "where": "all",
    "log_var": -10.0,
    "beta_start": 0.0,
    "beta_end": 0.3,
    "beta_steps": 0,  # steps from beta_start to beta_end; 0 for the whole training
    "kl_norm": "params",
    "tau": 0.99,
    "draws": 1,
    "draw_per_view": False,
    "guard": {
        "patience": 20,  # steps in a row that may be skipped before the run ends
        "spike": 0.0,  # also skip a step whose loss is so many times its average; 0 for never
    },
    "keep": {"last": 3, "every": 0},  # checkpoints: the last so many, and all multiples of so many steps
    "watchdog": 300.0,  # seconds without progress after which a run says what it waits for; 0 for never
    "log_every": 50,  # steps between two lines of metrics.jsonl
    "monitor_images": 1000,  # held-out images that are looked at, at most; 0 for all
    "monitor_every": 0,  # steps between two looks at held-out images and at the posterior; 0 for an epoch
    "save_every": 0,  # steps that a kill may cost, at most: two checkpoints are begun in them; 0 for an epoch
}
OPEN = ("encoder", "views", "optimizer")
"""Sections whose other fields are arguments of what they name."""

LOADERS = ("memory", "stream")

METHODS = ("byol", "byov", "supervised", "supervised_bbb")
PRIORS: dict[str, Callable] = {
    "standard": priors.standard,
    "teacher_mean": priors.teacher_mean,
    "teacher_moments": priors.teacher_moments,
}
VIEWS: dict[str, Callable[..., Views]] = {
    "imagenet": images.imagenet,
    "small_color": images.small_color,
    "small_gray": images.small_gray,
}
FLOATS = ("float32", "bfloat16", "float16")
OPTIMIZERS: dict[str, Callable] = {"adamw": optimizers.adamw, "lars": optimizers.lars}


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the defaults for what it leaves out; a key that does not exist is an error."""
    return _merge(DEFAULTS, config, "")


def network(config: Mapping[str, Any]) -> Any:
    """The Flax module that a complete config describes: a `Student` or a `Classifier`."""
    name = _choose("method", config["method"], METHODS)
    if name.startswith("supervised"):
        return networks.Classifier(_encoder(config), classes=config["data"]["classes"])
    heads = (
        _call(part, networks.MLP, config[part] | _compute(config) | _batch_axis(config))
        for part in ("projector", "predictor")
    )
    return networks.Student(_encoder(config), *heads)


def views(config: Mapping[str, Any]) -> Views:
    """The two augmentations, and the mean and std with which images are normalised."""
    section = dict(config["views"])
    return _call("views", VIEWS[_choose("views.name", section.pop("name"), VIEWS)], section)


def batch(config: Mapping[str, Any]) -> Batch:
    """Shapes of a global batch: images as they are, or the host's crops of each, one for every view."""
    cropped = (crops(config),) if config["data"]["loader"] == "stream" else ()
    shape = (config["batch_size"], *cropped, *config["data"]["image"])
    label = (lambda: jnp.zeros(shape[:1], jnp.int32)) if config["data"]["classes"] else lambda: None
    return jax.eval_shape(lambda: Batch(jnp.zeros(shape, jnp.uint8), label()))


def crops(config: Mapping[str, Any]) -> int:
    """How many views of an image a step looks at."""
    return 1 if config["method"].startswith("supervised") else 2


def method(config: Mapping[str, Any], module: Any, layout: Layout = methods.ONE_DEVICE) -> Method:
    """The training method around `module`, from `network`, on devices that share the work by `layout`."""
    name = _choose("method", config["method"], METHODS)
    arguments: dict[str, Any] = {
        "views": views(config),
        "accumulate": config["accumulate"],
        "layout": layout,
        "spike": config["guard"]["spike"],
    }
    if name == "byov" or name == "byol":
        arguments["tau"] = schedules.ema_cosine(config["tau"], config["steps"])
        arguments["classes"] = config["data"]["classes"]
    if name == "byov":
        arguments["draw_per_view"] = config["draw_per_view"]
    if name == "byov" or name == "supervised_bbb":
        arguments |= {
            "dataset_size": config["data"]["size"],
            "beta": schedules.cosine(
                config["beta_start"], config["beta_end"], config["beta_steps"] or config["steps"]
            ),
            "prior": PRIORS[_choose("prior", config["prior"], PRIORS)](),
        }
        arguments |= {key: config[key] for key in ("kl_norm", "where", "log_var", "draws")}
    return getattr(methods, name)(module, _optimizer(config), **arguments)


def _encoder(config: Mapping[str, Any]) -> Any:
    section = dict(config["encoder"])
    name = _choose("encoder.name", section.pop("name"), ("vit", "resnet"))
    section |= _compute(config)
    if name == "resnet":
        return _call("encoder", networks.resnet, section | _batch_axis(config))
    if "size" in section:
        size = section.pop("size")
        return _call("encoder", lambda **fields: networks.vit(size, **fields), section)
    return _call("encoder", networks.ViT, section)


def _compute(config: Mapping[str, Any]) -> dict[str, Any]:
    dtype = _choose("dtype", config["dtype"], FLOATS)
    return {} if dtype == "float32" else {"dtype": dtype}


def _batch_axis(config: Mapping[str, Any]) -> dict[str, Any]:
    """Under pmap batch norms must be told to look at all devices; under jit they do."""
    return {"axis_name": distributed.AXIS} if config["parallel"]["mode"] == "pmap" else {}


def _optimizer(config: Mapping[str, Any]) -> Any:
    section = dict(config["optimizer"])
    build = OPTIMIZERS[_choose("optimizer.name", section.pop("name"), OPTIMIZERS)]
    rate = schedules.warmup_cosine(section.pop("learning_rate"), section.pop("warmup"), config["steps"])
    return _call("optimizer", lambda **arguments: build(rate, **arguments), section)


def _merge(defaults: Mapping[str, Any], given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    merged = copy.deepcopy(dict(defaults))  # sections of the result are the caller's to change
    for key, value in given.items():
        if key not in defaults and prefix.rstrip(".") not in OPEN:
            close = difflib.get_close_matches(key, defaults, n=1)
            hint = (
                f"did you mean {prefix}{close[0]}?" if close else f"there are {', '.join(sorted(defaults))}"
            )
            raise ValueError(f"config has no key {prefix}{key}: {hint}")
        default = defaults.get(key)
        if isinstance(default, Mapping):
            if not isinstance(value, Mapping):
                raise ValueError(f"config.{prefix}{key}={value!r} must be a section like {default!r}")
            merged[key] = _merge(default, value, f"{prefix}{key}.")
        else:
            merged[key] = tuple(value) if isinstance(value, list) else value
    return merged


def _choose(key: str, value: Any, allowed: Any) -> Any:
    if value not in tuple(allowed):  # a dict would refuse to look up a list
        raise ValueError(f"config.{key}={value!r}: expected one of {', '.join(sorted(allowed))}")
    return value


def _call(section: str, function: Callable, arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.{section}: {error}") from None


def runner(
    config: Mapping[str, Any], *, mode: str | None = None, devices: Sequence[jax.Device] | None = None
) -> Runner:
    """The runner of a complete config whose data are filled in.

    Args:
      config: from `recipe.complete`.
      mode: "auto", "plain", "sharded" or "pmap"; that of the config if None.
      devices: all of all processes if None.
    """
    mode = mode or config["parallel"]["mode"]
    return distributed.build(
        lambda layout: method(config, network(config), layout),
        batch(config),
        mode=mode,
        devices=devices,
        one_draw=config["parallel"]["one_draw"],
        prng=config["prng"],
    )
