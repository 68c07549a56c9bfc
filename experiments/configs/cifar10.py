"""The recipe `cifar10`: see `byov_jax/recipes/cifar10.py`."""

from byov_jax.recipes.cifar10 import get_config as get_config
