"""Twelve distribution shifts of images in five severities.

    shifted = shifts.apply("gaussian_blur", 3, key, images)

Shifts run on the device and are deterministic in the key. The strengths, from noise to pixelation, are those
of the common corruptions of Hendrycks and Dietterich (2019). `corrupt` takes any strength.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates
from jaxtyping import Array, Float, Float32, Key

from byov_jax.images import ops
from byov_jax.images.ops import Planes
from byov_jax.images.views import image_keys

LARGE_SIDE = 64
"""Minimum shorter side, in pixels, of a large image."""

ROUNDING = 1e-5
"""How far outside of [0, 1] the values of an image may be; they are clipped."""


class Strengths(NamedTuple):
    """The strengths of a shift.

    Attributes:
      small: strengths of severities 1 to 5 for images whose shorter side is below `LARGE_SIDE`.
      large: strengths of severities 1 to 5 for larger images.
      lowest: minimum valid strength.
      highest: maximum valid strength.
    """

    small: tuple[float, ...]
    large: tuple[float, ...]
    lowest: float = 0.0
    highest: float = math.inf


_SHEAR = (0.06, 0.12, 0.18, 0.24, 0.30)
_DEGREES = (6.0, 12.0, 18.0, 24.0, 30.0)
_THRESHOLDS = (0.9, 0.75, 0.6, 0.45, 0.3)
_BITS = (7.0, 6.0, 5.0, 4.0, 3.0)

STRENGTHS = {
    "gaussian_noise": Strengths((0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "salt_pepper": Strengths((0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27), highest=1.0),
    "shot": Strengths(
        (500.0, 250.0, 100.0, 75.0, 50.0), (60.0, 25.0, 12.0, 5.0, 3.0), lowest=1e-3, highest=1e6
    ),
    "speckle": Strengths((0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6)),
    "gaussian_blur": Strengths((0.4, 0.6, 0.7, 0.8, 1.0), (1.0, 2.0, 3.0, 4.0, 6.0)),
    "contrast": Strengths((0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    "brightness": Strengths((0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5), lowest=-1.0, highest=1.0),
    "pixelate": Strengths((0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25), highest=1.0),
    "shear": Strengths(_SHEAR, _SHEAR),
    "rotate": Strengths(_DEGREES, _DEGREES, highest=180.0),
    "solarize": Strengths(_THRESHOLDS, _THRESHOLDS, highest=1.0),
    "posterize": Strengths(_BITS, _BITS, highest=8.0),
}
"""Strengths by name. Lower is stronger for shot, contrast, pixelate, solarize and posterize."""

NAMES = tuple(STRENGTHS)
"""The shifts in the order of reports."""


def apply(
    name: str,
    severity: int | np.integer | Array,
    key: Key[Array, ""],
    images: Array | np.ndarray,
    *,
    first: int | Array = 0,
) -> Float32[Array, "n height width channels"]:
    """Apply a shift to images.

    Args:
      name: one of `NAMES`.
      severity: 1 to 5, see `STRENGTHS`; 0 leaves the images unchanged. It may be traced, and then gives NaN
        where it is none of these.
      key: random numbers depend on the key and the index of the image, not on the batch or the severity.
      images: `[n, height, width, channels]`, uint8 or floats in [0, 1], with one or three channels. Floats
        outside by less than `ROUNDING` are clipped.
      first: index of the first image, to shift a data set in batches.

    Returns:
      Images of the same shape with values in [0, 1].
    """
    _check_name(name)
    severity = _checked_severity(severity, lowest=0)
    _check_images(images)
    size = min(images.shape[1:3])
    if isinstance(severity, jax.core.Tracer):
        shifted = corrupt(name, strength(name, severity, size), key, images, first=first)
        known = (severity >= 0) & (severity <= 5)
        return jnp.where(severity == 0, ops.clip(ops.to_float(images)), jnp.where(known, shifted, jnp.nan))
    if severity == 0:
        return ops.clip(ops.to_float(images))
    return corrupt(name, strength(name, severity, size), key, images, first=first)


def strength(name: str, severity: int | np.integer | Array, size: int) -> float | Array:
    """Return the strength of a severity from 1 to 5 for images whose shorter side has `size` pixels.

    A traced severity that is none of these has the strength of the nearest one.
    """
    _check_name(name)
    severity = _checked_severity(severity, lowest=1)
    strengths = STRENGTHS[name].small if size < LARGE_SIDE else STRENGTHS[name].large
    if isinstance(severity, jax.core.Tracer):
        return jnp.asarray(strengths, jnp.float32)[jnp.clip(severity, 1, 5) - 1]
    return strengths[severity - 1]


def corrupt(
    name: str,
    strength: float | Array,
    key: Key[Array, ""],
    images: Array | np.ndarray,
    *,
    first: int | Array = 0,
) -> Float32[Array, "n height width channels"]:
    """Apply a shift of any strength, in the unit of `STRENGTHS`; otherwise like `apply`.

    All strengths share one compiled program; under `jax.jit` the strength may be traced.
    """
    _check_name(name)
    _check_images(images)
    _check_range("strength", strength, STRENGTHS[name].lowest, STRENGTHS[name].highest)
    _check_range("first", first, 0, 2**31 - 1)
    return _corrupt(
        name, jnp.asarray(strength, jnp.float32), key, ops.to_float(images), jnp.asarray(first, jnp.int32)
    )


@partial(jax.jit, static_argnames="name")
def _corrupt(name: str, strength: Array, key: Array, images: Array, first: Array) -> Array:
    def one(key: Array, image: Array) -> Array:
        planes = _SHIFTS[name](key, jnp.moveaxis(ops.clip(image), -1, 0), strength)
        return jnp.moveaxis(ops.clip(planes), 0, -1)

    return jax.vmap(one)(image_keys(key, first + jnp.arange(len(images))), images)


def gaussian_noise(key: Array, planes: Planes, sigma: Float[Array, ""]) -> Planes:
    """Add `N(0, sigma^2)` to every value."""
    return planes + sigma * jax.random.normal(key, planes.shape, planes.dtype)


def salt_pepper(key: Array, planes: Planes, amount: Float[Array, ""]) -> Planes:
    """Set a fraction `amount` of the values, channels independently, to 0 or 1 with equal probability."""
    draw = jax.random.uniform(key, planes.shape, planes.dtype)
    return jnp.where(draw < amount, (draw < amount / 2).astype(planes.dtype), planes)


def shot(key: Array, planes: Planes, rate: Float[Array, ""]) -> Planes:
    """Replace values by photon counts, `Poisson(rate * x) / rate`."""
    return jax.random.poisson(key, rate * planes).astype(planes.dtype) / rate


def speckle(key: Array, planes: Planes, sigma: Float[Array, ""]) -> Planes:
    """Add noise proportional to the value: `x + x * N(0, sigma^2)`."""
    return planes + planes * sigma * jax.random.normal(key, planes.shape, planes.dtype)


def gaussian_blur(_: Array, planes: Planes, sigma: Float[Array, ""]) -> Planes:
    """Blur with a Gaussian of `sigma` pixels, renormalised at the borders."""
    sigma = jnp.maximum(sigma, 1e-3)  # exactly the identity, without 0 / 0
    # No truncation: the matrix is dense anyway, and a radius would have to be static.
    rows, columns = (ops.gaussian_matrix(size, sigma, size) for size in planes.shape[1:])
    return ops.separable(planes, rows, columns)


def contrast(_: Array, planes: Planes, factor: Float[Array, ""]) -> Planes:
    """Scale the difference of every value from the mean of its channel."""
    return ops.contrast(planes, factor)


def brightness(_: Array, planes: Planes, offset: Float[Array, ""]) -> Planes:
    """Add `offset` to the largest channel, the value of HSV, and keep hue and saturation."""
    value = jnp.max(planes, axis=0, keepdims=True)
    brighter = ops.brightness(value, offset)
    black = value == 0.0
    scaled = jnp.where(black, planes, planes / jnp.where(black, 1.0, value) * brighter)
    return jnp.where(black, brighter, scaled)


def pixelate(_: Array, planes: Planes, factor: Float[Array, ""]) -> Planes:
    """Average the pixels of each cell of a grid of `int(factor * size)` cells along each side.

    A pixel belongs to the cell that contains its centre. One whose centre lies between two cells counts in
    the first and shows the second, as after Pillow's box filter.
    """

    def averaging_matrix(size: int) -> Array:
        whole = jnp.floor(factor * size + 1e-4)  # in float32, 0.9 * 30 may be less than 27
        cells = jnp.maximum(whole, 1).astype(jnp.int32)
        centre = (2 * jnp.arange(size) + 1) * cells  # in units of 1 / (2 * size) cells
        shown, counted = centre // (2 * size), (centre - 1) // (2 * size)
        same_cell = (shown[:, None] == counted[None, :]).astype(planes.dtype)
        return same_cell / jnp.sum(same_cell, axis=1, keepdims=True)

    return ops.separable(planes, *(averaging_matrix(size) for size in planes.shape[1:]))


def shear(key: Array, planes: Planes, slope: Float[Array, ""]) -> Planes:
    """Shift the row `y` pixels below the centre by `slope * y` pixels, to the left or right at random."""
    slope = slope * _random_sign(key)
    return _warp(planes, lambda y, x: (y, x - slope * y))


def rotate(key: Array, planes: Planes, degrees: Float[Array, ""]) -> Planes:
    """Rotate about the centre, clockwise or anticlockwise at random."""
    angle = jnp.deg2rad(degrees) * _random_sign(key)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return _warp(planes, lambda y, x: (cos * y - sin * x, sin * y + cos * x))


def _random_sign(key: Array) -> Float[Array, ""]:
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0).astype(jnp.float32)


def _warp(planes: Planes, source: Callable[[Array, Array], tuple[Array, Array]]) -> Planes:
    """Sample the value at (y, x), relative to the centre, from `source(y, x)`: bilinear, black outside."""
    center = [(size - 1) / 2 for size in planes.shape[1:]]
    axes = [jnp.arange(size, dtype=planes.dtype) for size in planes.shape[1:]]
    y, x = source(*jnp.meshgrid(axes[0] - center[0], axes[1] - center[1], indexing="ij"))
    coordinates = [y + center[0], x + center[1]]
    return jax.vmap(lambda plane: map_coordinates(plane, coordinates, order=1, mode="constant"))(planes)


def solarize(_: Array, planes: Planes, threshold: Float[Array, ""]) -> Planes:
    """Invert the values at or above the threshold."""
    return ops.solarize(planes, threshold)


def posterize(_: Array, planes: Planes, bits: Float[Array, ""]) -> Planes:
    """Keep the `round(bits)` highest of the 8 bits of every value."""
    dropped = 8 - jnp.round(bits).astype(jnp.int32)
    values = jnp.round(255.0 * planes).astype(jnp.int32)
    return ops.to_float((values >> dropped << dropped).astype(jnp.uint8))


_RANDOM = (gaussian_noise, salt_pepper, shot, speckle, shear, rotate)
_DETERMINISTIC = (gaussian_blur, contrast, brightness, pixelate, solarize, posterize)
_SHIFTS: dict[str, Callable[[Array, Array, Array], Array]] = {
    shift.__name__: shift for shift in (*_RANDOM, *_DETERMINISTIC)
}


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"unknown shift {name!r}; allowed: {', '.join(NAMES)}")


def _checked_severity(severity: int | np.integer | Array, lowest: int) -> int | Array:
    """Return a severity, as an int unless it is traced, or reject it; of a tracer, its shape and dtype."""
    is_integer = isinstance(severity, int | np.integer)
    if isinstance(severity, jax.Array):
        is_integer = severity.ndim == 0 and jnp.issubdtype(severity.dtype, jnp.integer)
    if isinstance(severity, jax.core.Tracer) and is_integer:
        return severity
    if not is_integer or not lowest <= int(severity) <= 5:
        raise ValueError(f"severity={severity!r}; allowed: an integer from {lowest} to 5")
    return int(severity)


def _check_range(argument: str, value: float | Array, lowest: float, highest: float) -> None:
    """Reject a number out of range; tracers are not checked."""
    if not isinstance(value, jax.core.Tracer) and not (lowest <= value <= highest and math.isfinite(value)):
        raise ValueError(f"{argument}={value}; allowed: finite numbers from {lowest} to {highest}")


def _check_images(images: Array | np.ndarray) -> None:
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise ValueError(
            f"images have shape {images.shape}; allowed: [n, height, width, 1 or 3], without zeros"
        )
    concrete = not isinstance(images, jax.core.Tracer) and getattr(images, "is_fully_addressable", True)
    if concrete and jnp.issubdtype(images.dtype, jnp.floating):
        low, high = float(images.min()), float(images.max())
        if not (low >= -ROUNDING and high <= 1.0 + ROUNDING):
            raise ValueError(f"images have values from {low} to {high}; allowed: uint8, or floats in [0, 1]")
