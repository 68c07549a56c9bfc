r"""ResNet-18 on CIFAR-10.

    byov train --config=cifar10:byov \
        --config.data.source=FOLDER --workdir=runs/cifar10

FOLDER holds train/CLASS/*.png and test/CLASS/*.png; `tfds:cifar10`, the default, reads what
tensorflow-datasets has prepared as ArrayRecord; if it is missing, the error says how to prepare it. Variants:
byol, byov, supervised, supervised_bbb; Bayesian ones with a prior and a part of the weights after a dash,
such as byov-teacher_mean-no_conv.

What to expect: 200 epochs, which need an accelerator. A published BYOL with ResNet-18 reaches 86.9% by
nearest neighbours after 200 epochs and 92.6% by a linear probe after 1000; this recipe has not been trained
to the end yet.
"""

import ml_collections

from byov_jax.recipes import variants

EPOCH = 50_000 // 256


def get_config(variant: str = "byov") -> ml_collections.ConfigDict:
    """200 epochs at batch 256; the KL is annealed from 0 to 0.3 per weight."""
    return ml_collections.ConfigDict(
        {
            **variants.parse(variant),
            "seed": 0,
            "steps": 200 * EPOCH,
            "batch_size": 256,
            "data": {"source": "tfds:cifar10"},
            "encoder": {"name": "resnet", "depth": 18, "stem": "small"},
            "projector": {"widths": (2048, 256)},
            "predictor": {"widths": (2048, 256)},
            "views": {"name": "small_color"},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "warmup": 10 * EPOCH,
                "weight_decay": 0.05 if variants.decays(variant) else 0.0,
            },
            "variance": {"learning_rate": 1e-3},
            "beta_start": 0.0,
            "beta_end": 0.3,
            "tau": 0.99,
        }
    )
