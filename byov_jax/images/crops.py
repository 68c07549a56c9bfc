"""Random central crops, of which a representation should be less certain than of the whole images."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Key

from byov_jax.images import ops
from byov_jax.images.views import image_keys

SIDE = (0.1, 0.75)
"""Range of the crop's side as a fraction of the image's, as in the URL benchmark (Kirchhof et al., 2023)."""


@jax.jit
def center_crops(
    key: Key[Array, ""], images: Array | np.ndarray
) -> Float32[Array, "n height width channels"]:
    """Crop each image around its centre and resize the crop, bilinearly, to the size of the image.

    Height and width are cropped to the same fraction, drawn once per image from U(.1, .75).

    Args:
      key: the fraction depends on the key and the index of the image, not on the other images.
      images: [n, height, width, channels], uint8 in 0..255 or floats, which keep their range.
    """
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(
            f"images have shape {images.shape}; allowed: [n, height, width, channels], without zeros"
        )
    return jax.vmap(_center_crop)(image_keys(key, jnp.arange(len(images))), ops.to_float(images))


def _center_crop(key: Key[Array, ""], image: Float[Array, "height width channels"]) -> Array:
    scale = 1.0 / jax.random.uniform(key, (), jnp.float32, *SIDE)
    center = jnp.array(image.shape[:2], jnp.float32) / 2.0
    return jax.image.scale_and_translate(
        image, image.shape, (0, 1), jnp.stack([scale, scale]), center - scale * center, "linear"
    )
