"""Pure functions (key, images) -> images, run on the device: the two views of BYOL and their parts."""

from byov_jax.images.ops import normalize, to_float
from byov_jax.images.views import (
    View,
    Views,
    augment,
    image_keys,
    imagenet,
    small_color,
    small_gray,
    views,
)

__all__ = [
    "View",
    "Views",
    "augment",
    "image_keys",
    "imagenet",
    "normalize",
    "small_color",
    "small_gray",
    "to_float",
    "views",
]
