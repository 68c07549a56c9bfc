"""The recipe `imagenet`: see `byov_jax/recipes/imagenet.py`."""

from byov_jax.recipes.imagenet import baseline as baseline
from byov_jax.recipes.imagenet import get_config as get_config
