"""One image -> crops of one size on the host, random or central: decoded once, bicubic, RGB."""

import math
import threading
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import UInt8, UInt64

from byov_jax.data.loading import encoded_image
from byov_jax.data.loading.encoded_image import VISIBLE

cv2.setNumThreads(0)  # images are decoded in parallel, not parts of one

ATTEMPTS = 10  # as torchvision's RandomResizedCrop
MARGIN = 256 / 224
"""The short side is resized to so many times the side of the central crop."""

_DRAWS = 2 * ATTEMPTS + 2  # random numbers for one box
_GAP = 3  # larger images are averaged down to so many times the size first, which cannot be seen
_SIGMA = 0.4  # of the blur, for shrinking by 1: the best match to Pillow's filter on photographs
_LARGEST_SCRATCH = 1 << 22
_local = threading.local()


class Box(NamedTuple):
    """A rectangle of whole pixels."""

    top: int
    left: int
    height: int
    width: int


def random_bits(seed: int, step: int, row: int, count: int) -> UInt64[np.ndarray, "{count} draws"]:
    """What decides the crops of the image in a row of a step's global batch, whichever process makes them."""
    sequence = np.random.SeedSequence(seed, spawn_key=(step, row))
    return np.random.Philox(sequence).random_raw(count * _DRAWS).reshape(count, _DRAWS)


def random_crops(
    image: bytes | np.ndarray,
    bits: UInt64[np.ndarray, "count draws"],
    size: int,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> UInt8[np.ndarray, "count {size} {size} 3"]:
    """Random resized crops of one image, as `fill_crops` makes them."""
    out = np.empty((len(bits), size, size, 3), np.uint8)
    fill_crops(image, bits, out, area, aspect)
    return out


def fill_crops(
    image: bytes | np.ndarray,
    bits: UInt64[np.ndarray, "count draws"],
    out: UInt8[np.ndarray, "count size size 3"],
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> None:
    """Fills `out` with random resized crops of one image; nothing is flipped.

    Args:
      image: as a `Record` has it.
      bits: what decides each crop, see `random_bits`.
      out: where the crops go.
      area: range of a crop's fraction of the image's area.
      aspect: range of its width / height, drawn log-uniformly.
    """
    opened = encoded_image.open(image)
    boxes = [random_box(draws, opened.height, opened.width, area, aspect) for draws in bits]
    array = opened.at(min(min(box.height, box.width) for box in boxes), out.shape[1])
    reduction = round(opened.height / array.shape[0])
    for crop, box in zip(out, boxes, strict=True):
        rows, columns = _reduced(box.top, box.height, reduction), _reduced(box.left, box.width, reduction)
        resize(array[rows, columns], crop)


def random_box(
    bits: UInt64[np.ndarray, "draws"],
    height: int,
    width: int,
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> Box:
    """The box of torchvision's RandomResizedCrop.

    Of ten candidates with uniform area and log-uniform aspect the first that fits, at a uniform position; if
    none fits, the largest central box whose aspect is allowed.
    """
    draws = ((bits >> np.uint64(11)) * 2.0**-53).tolist()  # uniform in [0, 1)
    low, high = math.log(aspect[0]), math.log(aspect[1])
    for first, second in zip(draws[:ATTEMPTS], draws[ATTEMPTS : 2 * ATTEMPTS], strict=True):
        pixels = height * width * (area[0] + (area[1] - area[0]) * first)
        ratio = math.exp(low + (high - low) * second)
        box_height, box_width = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 0 < box_height <= height and 0 < box_width <= width:
            top = int(draws[-2] * (height - box_height + 1))
            left = int(draws[-1] * (width - box_width + 1))
            return Box(top, left, box_height, box_width)
    ratio = min(max(width / height, aspect[0]), aspect[1])
    box_height = min(max(round(width / ratio), 1), height)
    box_width = min(max(round(height * ratio), 1), width)
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def central_crop(image: bytes | np.ndarray, size: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """The centre of one image whose short side is resized to `MARGIN` times `size`: for evaluation."""
    opened = encoded_image.open(image)
    side = round(MARGIN * size)
    array = _middle(opened.at(min(opened.height, opened.width), side))
    short = min(array.shape[:2])
    height, width = side * array.shape[0] // short, side * array.shape[1] // short
    wide = np.empty((height, width, 3), np.uint8)
    resize(array, wide)
    top, left = round((height - size) / 2), round((width - size) / 2)
    return wide[top : top + size, left : left + size]


def resize(array: UInt8[np.ndarray, "_ _ 3"], out: UInt8[np.ndarray, "height width 3"]) -> None:
    """Fills `out` with the whole of `array`, bicubic and antialiased.

    OpenCV's bicubic filter leaves out pixels when it shrinks. If they are blurred before, the result differs
    from Pillow's by less than a percent, in a sixth of the time.
    """
    height, width, _ = out.shape
    down, across = array.shape[0] // (_GAP * height), array.shape[1] // (_GAP * width)
    if max(down, across) > 1:  # so wide a blur of so large an image would take seconds
        smaller = (array.shape[1] // max(across, 1), array.shape[0] // max(down, 1))
        array = cv2.resize(array, smaller, interpolation=cv2.INTER_AREA)
    shrink = max(array.shape[0] / height, array.shape[1] / width)
    if shrink > VISIBLE:
        side = 2 * math.ceil(shrink) - 1
        sigma = 0.0 if 1.75 < shrink <= 2 else _SIGMA * shrink  # 0: the weights 1 2 1, which are much faster
        blurred = _scratch(*array.shape[:2])
        array = cv2.GaussianBlur(array, (side, side), sigma, dst=blurred, borderType=cv2.BORDER_REPLICATE)
    cv2.resize(array, (width, height), dst=out, interpolation=cv2.INTER_CUBIC)


def _scratch(height: int, width: int) -> np.ndarray:
    """Memory [height, width, 3] that a thread uses again: to have it anew takes as long as to resize."""
    need = 3 * height * width
    if need > _LARGEST_SCRATCH:
        return np.empty((height, width, 3), np.uint8)
    if not hasattr(_local, "scratch"):
        _local.scratch = np.empty(_LARGEST_SCRATCH, np.uint8)
    return _local.scratch[:need].reshape(height, width, 3)


def _reduced(start: int, length: int, reduction: int) -> slice:
    return slice(round(start / reduction), round((start + length) / reduction))


def _middle(array: np.ndarray) -> np.ndarray:
    """The middle of a long image, more than enough for a central square."""
    most = 2 * min(array.shape[:2])
    top, left = (max(0, length - most) // 2 for length in array.shape[:2])
    return array[top : top + most, left : left + most]
