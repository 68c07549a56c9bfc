"""The recipe `fashion_mnist`: see `byov_jax/recipes/fashion_mnist.py`."""

from byov_jax.recipes.fashion_mnist import get_config as get_config
