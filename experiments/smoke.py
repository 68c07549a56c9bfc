"""A small version of any config, to see in less than a minute that everything works together."""

from pathlib import Path
from typing import Any

import numpy as np

from byov_jax.data.dataset import Dataset, Unlabelled
from byov_jax.model import load

TRAIN, TEST = 64, 32
SMALL_VIT = {"width": 16, "depth": 2, "heads": 2, "mlp_width": 32}


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """The same method, prior, views and kind of network: narrow, few steps, small batches."""
    encoder = config["encoder"]
    if encoder["name"] == "vit":
        if "size" in encoder:  # "B/16" says width and depth as well
            encoder = encoder | {"patch": int(encoder["size"].partition("/")[2])}
            encoder.pop("size")
        encoder = encoder | SMALL_VIT
    else:
        encoder = {"name": "resnet", "depth": encoder["depth"], "stages": (1, 1), "bottleneck": False}
        encoder |= {"width": 32, "stem": config["encoder"].get("stem", "small")}
        encoder |= {"norm": config["encoder"].get("norm", "batch")}
    heads = {"widths": (16, 8)}
    return config | {
        "encoder": encoder,
        "projector": config["projector"] | heads,
        "predictor": config["predictor"] | heads,
        "optimizer": config["optimizer"] | {"warmup": 1},
        "steps": 6,
        "beta_steps": min(config["beta_steps"], 6),
        "batch_size": 16,
        "accumulate": min(config["accumulate"], 2),
        "log_every": 2,
        "monitor_every": 3,
        "save_every": 3,
    }


def few(data: Dataset | Unlabelled) -> Dataset | Unlabelled:
    """Some images of the same data set, spread over it, so that every class has a chance."""
    return data._replace(train=_some(data.train, TRAIN), test=_some(data.test, TEST))


def try_out(workdir: Path, data: Dataset | Unlabelled) -> None:
    """Loads the run; predicts with uncertainty if there are labels, else embeds."""
    model = load(workdir)
    image = data.test.image[:8]
    if data.train.label is None:
        found = np.asarray(model.embed(image, draws=2 if model.bayesian else 0))
    else:
        if not model.supervised:
            model = model.with_probe(data.train.image, data.train.label, classes=len(data.classes))
        found = np.asarray(model.predict(image, draws=2).probs)
    if not np.isfinite(found).all():
        raise ValueError("smoke: the trained network's outputs are not finite")


def _some(images: Any, count: int) -> Any:
    rows = np.linspace(0, len(images.image) - 1, min(count, len(images.image))).astype(int)
    return images._replace(
        image=images.image[rows], label=None if images.label is None else images.label[rows]
    )
