"""Image augmentations and distribution shifts: pure functions (key, images) -> images, run on the device."""

from byov_jax.images.crops import center_crops as center_crops
from byov_jax.images.ops import normalize as normalize
from byov_jax.images.ops import to_float as to_float
from byov_jax.images.views import View as View
from byov_jax.images.views import Views as Views
from byov_jax.images.views import augment as augment
from byov_jax.images.views import image_keys as image_keys
from byov_jax.images.views import imagenet as imagenet
from byov_jax.images.views import small_color as small_color
from byov_jax.images.views import small_gray as small_gray

__all__ = [
    "View",
    "Views",
    "augment",
    "center_crops",
    "image_keys",
    "imagenet",
    "normalize",
    "small_color",
    "small_gray",
    "to_float",
]
