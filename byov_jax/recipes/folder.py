r"""A vision transformer on your own images.

    byov train --config=folder:byov \
        --config.data.source=FOLDER --workdir=runs/mine

FOLDER holds CLASS/*.jpg, or train/CLASS/*.jpg and, if you like, test/CLASS/*.jpg; or images without labels
(docs/data.md). They are resized to 64 pixels (`--config.data.resize=96 --config.views.size=96`) and kept in
memory. Variants: byol, byov and, with labels, supervised, supervised_bbb; Bayesian ones with a prior and a
part of the weights after a dash, such as byov-teacher_mean-no_conv.

What to expect: 10,000 steps of 256 images, some hours on a laptop, minutes on an accelerator. For fewer than
256 images set `--config.batch_size`. `--smoke` tries everything out in a minute.
"""

import ml_collections

from byov_jax.recipes import variants


def get_config(variant: str = "byov") -> ml_collections.ConfigDict:
    """10,000 steps at batch 256; the KL is annealed from 0 to 0.3 per weight."""
    return ml_collections.ConfigDict(
        {
            **variants.parse(variant),
            "seed": 0,
            "steps": 10_000,
            "batch_size": 256,
            "data": {"source": "", "resize": 64},
            "encoder": {
                "name": "vit",
                "patch": 8,
                "width": 192,
                "depth": 6,
                "heads": 3,
                "pool": "mean",
                "positions": "sincos",
                "init_std": 0.05,
            },
            "projector": {"widths": (2048, 256)},
            "predictor": {"widths": (2048, 256)},
            "views": {"name": "small_color", "size": 64},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "warmup": 1_000,
                "weight_decay": 0.05 if variants.decays(variant) else 0.0,
            },
            "variance": {"learning_rate": 2e-3},
            "beta_start": 0.0,
            "beta_end": 0.3,
            "tau": 0.99,
        }
    )
