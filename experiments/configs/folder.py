"""The recipe `folder`: see `byov_jax/recipes/folder.py`."""

from byov_jax.recipes.folder import get_config as get_config
