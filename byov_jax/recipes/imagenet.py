r"""ImageNet: vision transformers and ResNet-50, on TPU pods, GPU nodes and clusters.

    byov imagenet --config=imagenet:vit_b16 --workdir=DIR
    byov plan --config=imagenet:vit_b16 --topology=v5e:16x16

`--config.data.source` is tfds:imagenet2012 (the default; prepared as ArrayRecord or TFRecord), a folder that
`byov prepare` has written, the folder with the original ILSVRC2012 tar files, or any folder
of images train/CLASS/*.JPEG and val/CLASS/*.JPEG. Images are read, decoded and cropped on the host.

A variant is made of words with dashes between them, each optional:

    vit_b16 | vit_s16 | vit_ti16 | resnet50            network (vit_b16)
    byov | byol | supervised | supervised_bbb          method (byov)
    standard | teacher_mean | teacher_moments          prior (standard)
    all | no_conv | linear_only                        which weights are Bayesian (all)
    decay | no_decay                                   weight decay (of point estimates, not of posteriors)
    100 | 300 | 1000                                   epochs (300)
    batch256 ...                                       images in a global batch (batch4096)

as in vit_s16-byol-100-batch1024. Learning rate, warm-up, steps and the teacher's momentum follow from them.

What to expect: the ResNet-50 recipe is BYOL's (Grill et al., 2020), whose published linear accuracy after
1000 epochs is 74.3%. The recipe of the vision transformers is approximate: the paper's own table of
hyper-parameters is not public; it reports 75.97% for BYOL and about 0.4 points less, with an ECE 2.8 points
better, for BYOV with N(0, I). None of them has been trained to the end with this code yet.
"""

import re
from typing import Any

import ml_collections

from byov_jax.methods import schedules
from byov_jax.recipes import variants

IMAGES = 1_281_167
BATCH = 4096
NETWORKS = ("vit_b16", "vit_s16", "vit_ti16", "resnet50")
EPOCHS = (100, 300, 1000)
RESNET = {
    100: {"learning_rate": 0.45, "weight_decay": 1e-6, "tau": 0.99},
    300: {"learning_rate": 0.3, "weight_decay": 1e-6, "tau": 0.99},
    1000: {"learning_rate": 0.2, "weight_decay": 1.5e-6, "tau": 0.996},
}
"""BYOL's published presets by epochs; learning rates are for a batch of 256."""


def get_config(variant: str = "vit_b16") -> ml_collections.ConfigDict:
    """Return the recipe of a variant; the KL is annealed from 0 to 0.3 per weight."""
    words = _words(variant)
    network, epochs, batch = words["network"], words["epochs"], words["batch"]
    epoch = IMAGES / batch
    recipe = _resnet(words) if network == "resnet50" else _vit(words)
    return ml_collections.ConfigDict(
        {
            **words["method"],
            "seed": 0,
            "steps": round(epochs * epoch),
            "batch_size": batch,
            "dtype": "bfloat16",
            "data": {
                "source": "tfds:imagenet2012",
                "loader": "stream",
                # What a plan needs to know; training takes them from the data.
                "size": IMAGES,
                "image": (224, 224, 3),
                "classes": 1000,
            },
            "projector": {"widths": (4096, 256)},
            "predictor": {"widths": (4096, 256)},
            "views": {"name": "imagenet", "size": 224},
            "log_var": -10.0,
            "beta_start": 0.0,
            "beta_end": 0.3,
            "log_every": 50,
            "monitor_images": 0,
            **recipe,
        }
    )


def baseline(variant: str) -> str:
    """Return the variant of BYOL with the same network, epochs and batch."""
    words = _words(variant)
    return f"{words['network']}-byol-{words['epochs']}-batch{words['batch']}"


def _vit(words: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a vision transformer; approximate, see the module's docstring."""
    batch, epochs = words["batch"], words["epochs"]
    size = {"vit_b16": "B/16", "vit_s16": "S/16", "vit_ti16": "Ti/16"}[words["network"]]
    return {
        # One block is compiled for all, and its activations are computed again in the backward pass.
        "encoder": {"name": "vit", "size": size, "drop_path": 0.1, "scan": True, "remat": True},
        "optimizer": {
            "name": "adamw",
            "learning_rate": 1.5e-4 * batch / 256,
            "warmup": round(epochs * 40 / 300 * IMAGES / batch),
            "weight_decay": 0.1 if words["decays"] else 0.0,
            "b1": 0.9,
            "b2": 0.95,
        },
        "variance": {"learning_rate": 1.5e-4 * batch / 256},
        "tau": schedules.scale_ema(0.99, batch / BATCH),
    }


def _resnet(words: dict[str, Any]) -> dict[str, Any]:
    batch, preset = words["batch"], RESNET[words["epochs"]]
    return {
        "encoder": {"name": "resnet", "depth": 50},
        "optimizer": {
            "name": "lars",
            "learning_rate": preset["learning_rate"] * batch / 256,
            "warmup": round(10 * IMAGES / batch),
            "weight_decay": preset["weight_decay"] if words["decays"] else 0.0,
            "momentum": 0.9,
            "trust_coefficient": 1e-3,
            "lr_after_momentum": True,
        },
        # LARS would not move log_var: its updates are below float32's resolution. The rate is ours.
        "variance": {"learning_rate": 1.5e-4 * batch / 256},
        "tau": schedules.scale_ema(preset["tau"], batch / BATCH),
    }


def _words(variant: str) -> dict[str, Any]:
    """Parse the words of a variant; a ValueError lists the valid ones."""
    found: dict[str, Any] = {}
    method = []
    key: str
    value: Any
    for word in variant.split("-"):
        batch = re.fullmatch(r"batch([1-9]\d*)", word)
        if word in NETWORKS:
            key, value = "network", word
        elif word.isdecimal() and int(word) in EPOCHS:
            key, value = "epochs", int(word)
        elif batch is not None:
            key, value = "batch", int(batch.group(1))
        elif word in variants.METHODS:
            key, value = "name", word
        elif word in variants.WORDS:
            method.append(word)
            continue
        else:
            raise ValueError(
                f"unknown variant {variant!r}: {word!r} is none of {', '.join(NETWORKS + variants.METHODS)}, "
                f"{', '.join(variants.WORDS)}, {', '.join(map(str, EPOCHS))}, batchN"
            )
        if key in found:
            raise ValueError(f"unknown variant {variant!r}: it names both {found[key]!r} and {value!r}")
        found[key] = value
    chosen = "-".join([found.pop("name", "byov"), *method])
    words = {"network": "vit_b16", "epochs": 300, "batch": BATCH} | found
    return words | {"method": variants.parse(chosen), "decays": variants.decays(chosen)}
