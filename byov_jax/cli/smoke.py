"""A small version of any config, to see in less than a minute that everything works together."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from byov_jax.data import load as named
from byov_jax.data.dataset import Dataset, Unlabelled
from byov_jax.errors import RunError
from byov_jax.model import load

TRAIN, TEST = 64, 32
STEPS, BATCH, WIDTH = 4, 16, 16


@contextmanager
def quick_compilation() -> Iterator[None]:
    """Programs that run a few times only are not worth optimising, which takes most of a smoke run's time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def shrink(config: dict[str, Any], *, devices: int = 1) -> dict[str, Any]:
    """The same method, prior, views and kind of network: narrow, few steps, small batches."""
    heads = {"widths": (WIDTH, WIDTH)}
    return config | {
        "encoder": _small_vit(config) if config["encoder"]["name"] == "vit" else _small_resnet(config),
        "projector": config["projector"] | heads,
        "predictor": config["predictor"] | heads,
        "optimizer": config["optimizer"] | {"warmup": 1},
        "steps": STEPS,
        "beta_steps": min(config["beta_steps"], STEPS),
        "batch_size": -(-BATCH // devices) * devices,
        "accumulate": min(config["accumulate"], 2),
        "dtype": "float32",
        "data": config["data"] | {"workers": 0},
        "log_every": 2,
        "monitor_every": STEPS,
        "save_every": STEPS,
    }


def _small_vit(config: dict[str, Any]) -> dict[str, Any]:
    encoder = dict(config["encoder"])
    if "size" in encoder:  # "B/16" says width and depth as well
        encoder["patch"] = int(encoder.pop("size").partition("/")[2])
    # Few different shapes: the noise of each is compiled on its own.
    return encoder | {"width": WIDTH, "depth": 1, "heads": 2, "mlp_width": WIDTH}


def _small_resnet(config: dict[str, Any]) -> dict[str, Any]:
    small = {"depth": 18, "stages": (1, 1), "bottleneck": False, "width": 32}
    return config["encoder"] | small


def few(data: Dataset | Unlabelled) -> Dataset | Unlabelled:
    """Some images of the same data set, spread over it, so that every class has a chance."""
    return data._replace(train=_some(data.train, TRAIN), test=_some(data.test, TEST))


def try_out(workdir: Path, data: Dataset | Unlabelled) -> None:
    """Loads the run and predicts with draws of its weights: classes if it learned any, else features."""
    model = load(workdir)
    image = data.test.image[:8]
    if model.supervised:
        found = np.asarray(model.predict(image, draws=2).probs)
    else:
        found = np.asarray(model.embed(image, draws=2 if model.bayesian else 0))
    if not np.isfinite(found).all():
        raise RunError("smoke: the trained network's outputs are not finite")


def _some(images: Any, count: int) -> Any:
    rows = np.linspace(0, len(images.image) - 1, min(count, len(images.image))).astype(int)
    label = None if images.label is None else images.label[rows]
    return images._replace(image=named.some(images.image, rows), label=label)
