"""The recipe `quickstart`: see `byov_jax/recipes/quickstart.py`."""

from byov_jax.recipes.quickstart import get_config as get_config
