"""Image operations that views and shifts share: conversion, separable resampling, colour.

All but `to_float` and `normalize` take one image as planes `[channels, height, width]` in [0, 1]: colour
arithmetic is two to three times faster on planes than on interleaved pixels.
"""

from collections.abc import Sequence

import dm_pix
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Shaped

Planes = Float[Array, "channels height width"]
Scalar = float | Float[Array, ""]


def to_float(images: Shaped[Array | np.ndarray, "*shape"]) -> Float32[Array, "*shape"]:
    """Convert images to float32 in [0, 1]: uint8 is divided by 255, floats are unchanged."""
    if images.dtype == jnp.uint8:
        return jnp.asarray(images, jnp.float32) / 255.0
    if jnp.issubdtype(images.dtype, jnp.floating):
        return jnp.asarray(images, jnp.float32)
    raise ValueError(f"images have dtype {images.dtype}; allowed: uint8 in 0..255, or a float type in [0, 1]")


def normalize(
    images: Float[Array, "*shape channels"], mean: Sequence[float], std: Sequence[float]
) -> Float[Array, "*shape channels"]:
    """Return `(images - mean) / std`, with one mean and one standard deviation per channel."""
    channels = images.shape[-1]
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"mean={mean} and std={std} need one value per channel; the images have {channels}")
    per_channel = (1,) * (images.ndim - 1) + (channels,)
    return (images - jnp.reshape(jnp.array(mean), per_channel)) / jnp.reshape(jnp.array(std), per_channel)


def separable(
    image: Planes, rows: Float[Array, "out_height height"], columns: Float[Array, "out_width width"]
) -> Float[Array, "channels out_height out_width"]:
    """Return `rows @ plane @ columns.T` for every plane."""
    # The default precision of a TPU, bfloat16, has fewer grey levels than an 8-bit image.
    return jnp.einsum("oh,chw,pw->cop", rows, image, columns, precision=jax.lax.Precision.HIGHEST)


def resize_matrix(
    start: int | Int[Array, ""], length: int | Int[Array, ""], input_size: int, output_size: int
) -> Float[Array, "output_size input_size"]:
    """Return the matrix that crops an axis to `start : start + length` and resizes it to `output_size`.

    Bicubic with Keys' kernel (1981, a = -1/2), widened when shrinking (antialiasing). Weights outside the
    crop are zero and the others sum to one.
    """
    pixels = jnp.arange(input_size) - start
    centers = (2 * jnp.arange(output_size) + 1) * length - output_size
    # In units of 1 / (2 * output_size) pixels coordinates are integers, hence exact.
    offset = centers[:, None] - 2 * output_size * pixels[None, :]
    weights = _keys_cubic(jnp.abs(offset) / (2 * jnp.maximum(length, output_size)))
    weights = jnp.where(((pixels >= 0) & (pixels < length))[None, :], weights, 0.0)
    return weights / jnp.sum(weights, axis=1, keepdims=True)


def _keys_cubic(distance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    near = (1.5 * distance - 2.5) * distance**2 + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return jnp.where(distance < 1.0, near, jnp.where(distance < 2.0, far, 0.0))


def gaussian_matrix(size: int, sigma: Scalar, radius: int) -> Float[Array, "size size"]:
    """Return the matrix that blurs an axis with a Gaussian of `2 * radius + 1` taps.

    At the borders, where fewer taps remain, the weights are renormalised.
    """
    offset = jnp.arange(size)[:, None] - jnp.arange(size)[None, :]
    weights = jnp.where(jnp.abs(offset) <= radius, jnp.exp(-0.5 * (offset / sigma) ** 2), 0.0)
    return weights / jnp.sum(weights, axis=1, keepdims=True)


def brightness(image: Planes, delta: Scalar) -> Planes:
    """Add `delta` to every value."""
    return clip(dm_pix.adjust_brightness(image, delta))


def contrast(image: Planes, factor: Scalar) -> Planes:
    """Scale the difference of every value from the mean of its plane."""
    return clip(dm_pix.adjust_contrast(image, factor, channel_axis=0))


def saturation(image: Planes, factor: Scalar) -> Planes:
    """Scale the HSV saturation, up to at most 1, with hue and value unchanged.

    At fixed hue and value a colour is linear in the saturation, so no conversion to HSV is needed.
    """
    value = jnp.max(image, axis=0, keepdims=True)
    chroma = value - jnp.min(image, axis=0, keepdims=True)
    factor = jnp.minimum(factor, value / _positive(chroma))
    return clip(value - factor * (value - image))


def hue(image: Planes, turns: Scalar) -> Planes:
    """Rotate the HSV hue by a fraction of a full turn, with saturation and value unchanged."""
    red, green, blue = jnp.split(image, 3)
    value = jnp.max(image, axis=0, keepdims=True)
    chroma = value - jnp.min(image, axis=0, keepdims=True)
    safe = _positive(chroma)
    green_or_blue = jnp.where(value == green, (blue - red) / safe + 2.0, (red - green) / safe + 4.0)
    angle = jnp.where(value == red, (green - blue) / safe, green_or_blue) + 6.0 * turns
    # Not `%`: XLA's remainder calls fmod for every pixel, which is most of the time of dm_pix.adjust_hue.
    angle = angle - 6.0 * jnp.floor(angle / 6.0)
    pure = (jnp.abs(angle - 3.0) - 1.0, 2.0 - jnp.abs(angle - 2.0), 2.0 - jnp.abs(angle - 4.0))
    return clip(jnp.concatenate([value - chroma * (1.0 - clip(color)) for color in pure]))


def _positive(chroma: Planes) -> Planes:
    """Replace the zero chroma of gray pixels by one, to divide by it."""
    return jnp.where(chroma > 0.0, chroma, 1.0)


def grayscale(image: Planes) -> Planes:
    """Set all three planes to the luma (.2989, .587, .114)."""
    return dm_pix.rgb_to_grayscale(image, keep_dims=True, channel_axis=0)


def solarize(image: Planes, threshold: Scalar) -> Planes:
    """Invert the values at or above the threshold."""
    return dm_pix.solarize(image, threshold)


def clip(image: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Clip values to [0, 1]."""
    return jnp.clip(image, 0.0, 1.0)
