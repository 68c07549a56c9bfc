"""The two augmentations T and T' of BYOL (Grill et al., 2020, appendix B), with one key per image.

config = imagenet(size=224)
x1, x2 = views(image_keys(key, jnp.arange(len(images))), images, config)
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int, Key, UInt8

from byov_jax.images import ops
from byov_jax.images.ops import Planes

CROP_ATTEMPTS = 10  # as torchvision's RandomResizedCrop


@dataclass(frozen=True)
class View:
    """One augmentation, with its transforms in the order of application; the defaults are BYOL's T.

    Transforms with probability or strength 0 are not compiled.

    Attributes:
      size: side of the square output; None keeps the height and width of the input.
      area: range of the crop's fraction of the image's area.
      aspect: range of the crop's width / height, log-uniform.
      flip: probability of a horizontal flip.
      jitter: probability of the colour jitter: the next four transforms, in random order.
      brightness: maximum value added or subtracted.
      contrast: maximum deviation of the factor from 1.
      saturation: maximum deviation of the factor from 1.
      hue: maximum rotation, as a fraction of a full turn.
      grayscale: probability of dropping colour.
      blur: probability of a Gaussian blur.
      blur_sigma: range of the blur's standard deviation in pixels.
      blur_kernel: kernel width as a fraction of the output's height, made odd (.1: 23 taps at 224 pixels).
      solarize: probability of inverting the values at or above `solarize_threshold`.
      solarize_threshold: lowest value that is inverted.
    """

    size: int | None = None
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1
    grayscale: float = 0.2
    blur: float = 1.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    blur_kernel: float = 0.1
    solarize: float = 0.0
    solarize_threshold: float = 0.5

    def __post_init__(self) -> None:
        self._check(
            "size", self.size is None or self.size >= 1, "a positive integer, or None (the input's size)"
        )
        for name in ("flip", "jitter", "grayscale", "blur", "solarize"):
            self._check(name, 0.0 <= getattr(self, name) <= 1.0, "a probability in [0, 1]")
        for name in ("brightness", "contrast", "saturation", "solarize_threshold"):
            self._check(name, 0.0 <= getattr(self, name) <= 1.0, "a number in [0, 1]")
        self._check("hue", 0.0 <= self.hue <= 0.5, "a number in [0, 0.5], half a turn")
        self._check("blur_kernel", 0.0 < self.blur_kernel <= 1.0, "a fraction in (0, 1]")
        self._check("area", _is_range(self.area, 1.0), "(low, high) with 0 < low <= high <= 1")
        for name in ("aspect", "blur_sigma"):
            self._check(name, _is_range(getattr(self, name)), "(low, high) with 0 < low <= high, finite")

    def _check(self, name: str, valid: bool, allowed: str) -> None:
        if not valid:
            raise ValueError(f"{name}={getattr(self, name)}; allowed: {allowed}")


def _is_range(value: tuple[float, float], maximum: float = sys.float_info.max) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and 0.0 < value[0] <= value[1] <= maximum


@dataclass(frozen=True)
class Views:
    """T, T' and the mean and standard deviation per channel that normalise their outputs."""

    first: View
    second: View
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) not in (1, 3) or len(self.mean) != len(self.std):
            raise ValueError(f"mean={self.mean}, std={self.std}; allowed: one value each, or three each")
        if not all(0.0 < value <= sys.float_info.max for value in self.std):
            raise ValueError(f"std={self.std}; allowed: positive numbers")

    def __call__(self, keys: Key[Array, " batch"], images: Array | np.ndarray) -> tuple[Array, Array]:
        """Return `views` of the images with this configuration."""
        return views(keys, images, self)


def imagenet(size: int = 224, **fields: Any) -> Views:
    """T and T' of the paper for large colour images; `fields` override fields of both `View`s."""
    return Views(
        first=View(**({"size": size} | fields)),
        second=View(**({"size": size, "blur": 0.1, "solarize": 0.2} | fields)),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )


def small_color(size: int = 32, **fields: Any) -> Views:
    """Views for images like CIFAR's: no blur, and crops of at least a fifth of the image."""
    view: dict[str, Any] = {"size": size, "area": (0.2, 1.0), "blur": 0.0}
    return Views(
        first=View(**(view | fields)),
        second=View(**(view | {"solarize": 0.2} | fields)),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )


def small_gray(size: int = 28, **fields: Any) -> Views:
    """Views for images like Fashion-MNIST's: no blur, and only brightness and contrast as jitter."""
    colorless = {"saturation": 0.0, "hue": 0.0, "grayscale": 0.0}
    view: dict[str, Any] = {"size": size, "area": (0.3, 1.0), "blur": 0.0} | colorless
    return Views(
        first=View(**(view | fields)),
        second=View(**(view | {"solarize": 0.2} | fields)),
        mean=(0.2860,),
        std=(0.3530,),
    )


def image_keys(key: Key[Array, ""], indices: Int[Array, " batch"]) -> Key[Array, " batch"]:
    """Return one key per image from its index in the global batch, independent of how the batch is split."""
    key = _threefry(key)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, indices)


def _threefry(key: Key[Array, ""]) -> Key[Array, ""]:
    """Convert to a threefry key: under vmap, the numbers of other generators depend on the whole batch."""
    return jax.random.wrap_key_data(jax.random.key_data(key)[:2], impl="threefry2x32")


@jax.jit(static_argnames="config", inline=True)
def views(
    keys: Key[Array, " batch"],
    images: UInt8[Array | np.ndarray, "batch *crops height width channels"]
    | Float[Array | np.ndarray, "batch *crops height width channels"],
    config: Views,
) -> tuple[Float32[Array, "batch _ _ channels"], Float32[Array, "batch _ _ channels"]]:
    """Return two augmented, normalised views of every image, each a function of the image and its key.

    Args:
      keys: one key per image, see `image_keys`.
      images: uint8 in 0..255 or floats in [0, 1], with one or three channels; or random crops of them,
        [batch, crops, height, width, channels], of which the first and the last become the views.
      config: the two augmentations; static under `jax.jit`.
    """

    def pair(key: Array, image: Array) -> tuple[Array, Array]:
        first, second = jax.random.split(key)
        cropped = image.ndim == 4
        image1, image2 = (image[0], image[-1]) if cropped else (image, image)
        return (
            augment(first, image1, config.first, cropped=cropped),
            augment(second, image2, config.second, cropped=cropped),
        )

    x1, x2 = jax.vmap(pair)(keys, ops.to_float(images))
    return ops.normalize(x1, config.mean, config.std), ops.normalize(x2, config.mean, config.std)


@jax.jit(static_argnames=("view", "cropped"), inline=True)
def augment(
    key: Key[Array, ""], image: Float[Array, "height width channels"], view: View, *, cropped: bool = False
) -> Float[Array, "out_height out_width channels"]:
    """Draw a view of one image with values in [0, 1], without gradient.

    With `cropped`, the image is already a random crop of the view's size, and the flip comes first.
    """
    _check_channels(image.shape[-1], view)
    draws = uniform_draws(key)
    planes = jnp.moveaxis(lax.stop_gradient(image), -1, 0)
    planes = flipped_crop(draws, planes, view) if cropped else resized_crop(draws, planes, view)
    planes = _with_probability(view.jitter, draws.jitter, lambda x: color_jitter(draws, x, view), planes)
    planes = _with_probability(view.grayscale, draws.grayscale, ops.grayscale, planes)
    planes = _with_probability(view.blur, draws.blur, lambda x: gaussian_blur(draws, x, view), planes)
    planes = _with_probability(
        view.solarize, draws.solarize, lambda x: ops.solarize(x, view.solarize_threshold), planes
    )
    return jnp.moveaxis(ops.clip(planes), 0, -1)


def _check_channels(channels: int, view: View) -> None:
    if channels not in (1, 3):
        raise ValueError(f"the image has {channels} channels; allowed: 1 or 3, in the last axis")
    jitter = ("saturation", "hue") if view.jitter > 0.0 else ()
    colored = [name for name in (*jitter, "grayscale") if getattr(view, name) > 0.0]
    if channels == 1 and colored:
        raise ValueError(
            f"the image has one channel, but the view changes colours: set {', '.join(colored)} to 0"
        )


class Draws(NamedTuple):
    """The random numbers of one view, uniform in [0, 1): vectors and scalars."""

    areas: Array
    aspects: Array
    position: Array
    amounts: Array
    order: Array
    sigma: Array
    flip: Array
    jitter: Array
    grayscale: Array
    blur: Array
    solarize: Array


def uniform_draws(key: Key[Array, ""]) -> Draws:
    """Draw all numbers at once: one generator for each would dominate the compilation time."""
    key = _threefry(key)
    sizes = (CROP_ATTEMPTS, CROP_ATTEMPTS, 2, 4, 4)
    *vectors, scalars = jnp.split(jax.random.uniform(key, (sum(sizes) + 6,)), np.cumsum(sizes))
    return Draws(*vectors, *scalars)


def _scale(draw: Array, low: float, high: float) -> Array:
    return low + (high - low) * draw


def _with_probability(
    probability: float, coin: Array, transform: Callable[[Array], Array], array: Array
) -> Array:
    """Apply `transform` if the uniform number `coin` is below `probability`."""
    if probability == 0.0:
        return array
    if probability == 1.0:
        return transform(array)
    return jnp.where(coin < probability, transform(array), array)


def resized_crop(draws: Draws, planes: Planes, view: View) -> Float[Array, "channels out_height out_width"]:
    """Crop a random box, resize it to the view's size and flip it at random."""
    _, height, width = planes.shape
    out_height, out_width = (height, width) if view.size is None else (view.size, view.size)
    box = random_box(draws, height, width, view)
    rows = ops.resize_matrix(box.top, box.height, height, out_height)
    columns = ops.resize_matrix(box.left, box.width, width, out_width)
    columns = _with_probability(view.flip, draws.flip, jnp.flipud, columns)  # flips the image for free
    return ops.clip(ops.separable(planes, rows, columns))


def flipped_crop(draws: Draws, planes: Planes, view: View) -> Planes:
    """Flip a crop at random."""
    side = planes.shape[1]
    if view.size not in (None, side):
        raise ValueError(
            f"the crops are {side} pixels wide, the view is {view.size}: crop to the view's size"
        )
    return _with_probability(view.flip, draws.flip, lambda x: x[:, :, ::-1], planes)


class Box(NamedTuple):
    """A rectangle of whole pixels."""

    top: Int[Array, ""]
    left: Int[Array, ""]
    height: Int[Array, ""]
    width: Int[Array, ""]


def random_box(draws: Draws, height: int, width: int, view: View) -> Box:
    """Return the random box of torchvision's RandomResizedCrop.

    The first of ten candidates, with uniform area and log-uniform aspect, that fits the image, at a uniform
    position; if none fits, the largest central box within the range of aspects.
    """
    pixels = height * width * _scale(draws.areas, *view.area)
    aspect = jnp.exp(_scale(draws.aspects, *np.log(view.aspect)))
    central_aspect = np.clip(width / height, *view.aspect)
    central_height = np.clip(round(width / central_aspect), 1, height)
    central_width = np.clip(round(height * central_aspect), 1, width)

    heights = jnp.round(jnp.sqrt(pixels / aspect)).astype(int)
    widths = jnp.round(jnp.sqrt(pixels * aspect)).astype(int)
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    first, any_fits = jnp.argmax(fits), jnp.any(fits)

    box_height = jnp.where(any_fits, heights[first], central_height)
    box_width = jnp.where(any_fits, widths[first], central_width)
    slack = jnp.stack([height - box_height, width - box_width])
    top, left = jnp.where(any_fits, jnp.floor(draws.position * (slack + 1)).astype(int), slack // 2)
    return Box(top, left, box_height, box_width)


def color_jitter(draws: Draws, planes: Planes, view: View) -> Planes:
    """Change brightness, contrast, saturation and hue by random amounts, in random order."""
    brightness, contrast, saturation, hue = _scale(draws.amounts, -1.0, 1.0)
    transforms = (
        (view.brightness, lambda x: ops.brightness(x, view.brightness * brightness)),
        (view.contrast, lambda x: ops.contrast(x, 1.0 + view.contrast * contrast)),
        (view.saturation, lambda x: ops.saturation(x, 1.0 + view.saturation * saturation)),
        (view.hue, lambda x: ops.hue(x, view.hue * hue)),
    )
    branches = [transform for strength, transform in transforms if strength > 0.0]
    for index in jnp.argsort(draws.order[: len(branches)]):
        planes = lax.switch(index, branches, planes)
    return planes


def gaussian_blur(draws: Draws, planes: Planes, view: View) -> Planes:
    """Blur with a random standard deviation."""
    _, height, width = planes.shape
    sigma = _scale(draws.sigma, *view.blur_sigma)
    radius = int(view.blur_kernel * height / 2)
    rows, columns = (ops.gaussian_matrix(size, sigma, radius) for size in (height, width))
    return ops.separable(planes, rows, columns)
