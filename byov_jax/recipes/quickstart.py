"""A small vision transformer on the embedded Fashion-MNIST images, for a laptop.

    byov quickstart                                   three methods, evaluation and report
    byov train --config=quickstart:byov --workdir=runs/mine

Variants: byol, byov, supervised, supervised_bbb; Bayesian ones with a prior and a part of the weights after a
dash, such as byov-teacher_mean or byov-teacher_moments-linear_only.

What to expect on two cores: a minute or two of training; `byov quickstart` prints the table.
"""

import ml_collections

from byov_jax.recipes import variants


def get_config(variant: str = "byov") -> ml_collections.ConfigDict:
    """The recipe: N(0, I) prior, KL annealed from 0 to 0.3 per weight, a teacher of momentum 0.97."""
    return ml_collections.ConfigDict(
        {
            **variants.parse(variant),
            "seed": 0,
            "steps": 600,
            "batch_size": 128,
            "data": {"source": "fashion_mnist"},
            "encoder": {
                "name": "vit",
                "patch": 7,
                "width": 64,
                "depth": 2,
                "heads": 4,
                # Clothes are centred, so positions carry information about the class.
                "pool": "concat",
                "positions": "sincos",
                "init_std": 0.125,
            },
            "projector": {"widths": (512, 64)},
            "predictor": {"widths": (512, 64)},
            # With strong crops and exposures, a network trained for minutes becomes invariant to what
            # distinguishes the classes; with these, its features beat raw pixels.
            "views": {
                "name": "small_gray",
                "area": (0.6, 1.0),
                "brightness": 0.2,
                "contrast": 0.2,
                "solarize": 0.0,
            },
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "warmup": 60,
                "weight_decay": 0.1 if variants.decays(variant) else 0.0,
            },
            # At the rate of the means, the paper's, sigma hardly moves in a few hundred steps.
            "variance": {"learning_rate": 1e-2},
            "log_var": -10.0,
            "beta_start": 0.0,
            "beta_end": 0.3,
            "tau": 0.97,
            "log_every": 20,
            "monitor_every": 100,
            "save_every": 400,
        }
    )
