r"""A small vision transformer on all 60,000 images of Fashion-MNIST.

    byov train --config=fashion_mnist:byov \
        --config.data.source=FOLDER --workdir=runs/fashion_mnist

FOLDER has the four IDX files (train-images-idx3-ubyte.gz and so on, gzipped or not), as the data set is
published. `tfds:fashion_mnist`, the default, reads what tensorflow-datasets has prepared as ArrayRecord; if
it is missing, the error says how to prepare it. Variants: byol, byov, supervised, supervised_bbb; Bayesian
ones with a prior and a part of the weights after a dash, such as byov-teacher_mean-no_conv.

What to expect: 40 epochs, about half an hour on two cores. The same network as `quickstart`, wider and
deeper, with six times the images.
"""

import ml_collections

from byov_jax.recipes import quickstart, variants


def get_config(variant: str = "byov") -> ml_collections.ConfigDict:
    """40 epochs at batch 256; the KL is annealed from 0 to 0.3 per weight."""
    config = quickstart.get_config(variant).unlock()
    config.update(
        {
            "steps": 40 * (60_000 // 256),
            "batch_size": 256,
            "data": {"source": "tfds:fashion_mnist"},
            "encoder": {"width": 96, "depth": 3, "init_std": 0.1},
            "optimizer": {
                "learning_rate": 1e-3,
                "warmup": 2 * (60_000 // 256),
                "weight_decay": 0.05 if variants.decays(variant) else 0.0,
            },
            "variance": {"learning_rate": 2e-3},
            "tau": 0.99,
            "log_every": 50,
            "monitor_every": 0,
            "save_every": 0,
        }
    )
    return config
