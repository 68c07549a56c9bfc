"""A small vision transformer on the embedded Fashion-MNIST images, for a laptop.

    python -m experiments.quickstart --method=byov

Variants: byol, byov, supervised, supervised_bbb.
"""

import ml_collections


def get_config(variant: str = "byov") -> ml_collections.ConfigDict:
    """The recipe: N(0, I) prior, KL annealed from 0 to 0.3 per weight, a teacher of momentum 0.97."""
    bayesian = variant in ("byov", "supervised_bbb")
    return ml_collections.ConfigDict(
        {
            "method": variant,
            "seed": 0,
            "steps": 300,
            "batch_size": 128,
            "data": {"source": "fashion_mnist"},
            "encoder": {
                "name": "vit",
                "patch": 7,
                "width": 128,
                "depth": 3,
                "heads": 4,
                "pool": "mean",
                "positions": "sincos",
            },
            "projector": {"widths": (512, 64)},
            "predictor": {"widths": (512, 64)},
            "views": {"name": "small_gray"},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 2e-3,
                "warmup": 30,
                # Decay is the deterministic methods' prior; the KL is the Bayesian methods'.
                "weight_decay": 0.0 if bayesian else 0.1,
                # At 1, the paper's value, sigma hardly moves in a few hundred steps.
                "log_var_multiplier": 5.0,
            },
            # The paper's -10 drowns weights that were trained for only a few hundred steps in noise.
            "log_var": -14.0,
            "prior": "standard",
            "beta_start": 0.0,
            "beta_end": 0.3,
            "tau": 0.97,
        }
    )
