"""Cut random or central crops of one size from an image on the host: decoded once, bicubic, RGB."""

import math
import threading
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import UInt8, UInt64

from byov_jax.data.loading import decode

cv2.setNumThreads(0)  # parallelism is across images

ATTEMPTS = 10  # as in torchvision's RandomResizedCrop
MARGIN = 256 / 224
"""Ratio of the resized short side to the side of the central crop."""

_DRAWS = 2 * ATTEMPTS + 2  # random numbers per box
_GAP = 3  # larger images are first averaged down to this multiple of the size, without visible effect
_SIGMA = 0.4  # of the blur, per shrink factor: the best match to Pillow's filter on photographs
_LARGEST_SCRATCH = 1 << 22
_local = threading.local()


class Box(NamedTuple):
    """A rectangle in pixels."""

    top: int
    left: int
    height: int
    width: int


def random_bits(seed: int, step: int, row: int, count: int) -> UInt64[np.ndarray, "{count} draws"]:
    """Return the random bits for `count` crops of the image in `row` of the global batch, on any process."""
    sequence = np.random.SeedSequence(seed, spawn_key=(step, row))
    return np.random.Philox(sequence).random_raw(count * _DRAWS).reshape(count, _DRAWS)


def random_crops(
    image: bytes | np.ndarray,
    bits: UInt64[np.ndarray, "count draws"],
    size: int,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> UInt8[np.ndarray, "count {size} {size} 3"]:
    """Return random resized crops of one image, see `fill_crops`."""
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
    """Fill `out` with random resized crops of one image, without flips.

    Args:
      image: the image of a `Record`.
      bits: the random bits of each crop, see `random_bits`.
      out: the array to fill.
      area: range of a crop's fraction of the image's area.
      aspect: range of its width / height, drawn log-uniformly.
    """
    opened = decode.open_image(image)
    boxes = [random_box(draws, opened.height, opened.width, area, aspect) for draws in bits]
    array = opened.decode(min(min(box.height, box.width) for box in boxes), out.shape[1])
    reduction = round(opened.height / array.shape[0])
    for crop, box in zip(out, boxes, strict=True):
        rows, columns = _scaled(box.top, box.height, reduction), _scaled(box.left, box.width, reduction)
        resize(array[rows, columns], crop)


def random_box(
    bits: UInt64[np.ndarray, "draws"],
    height: int,
    width: int,
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> Box:
    """Return the box of torchvision's RandomResizedCrop.

    The first of ten candidates with uniform area and log-uniform aspect that fits, at a uniform position; if
    none fits, the largest central box with an allowed aspect.
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
    """Return the central crop for evaluation, after resizing the short side to `MARGIN * size`."""
    opened = decode.open_image(image)
    side = round(MARGIN * size)
    array = _central_part(opened.decode(min(opened.height, opened.width), side))
    short = min(array.shape[:2])
    height, width = side * array.shape[0] // short, side * array.shape[1] // short
    resized = np.empty((height, width, 3), np.uint8)
    resize(array, resized)
    top, left = round((height - size) / 2), round((width - size) / 2)
    return resized[top : top + size, left : left + size]


def resize(array: UInt8[np.ndarray, "_ _ 3"], out: UInt8[np.ndarray, "height width 3"]) -> None:
    """Resize `array` into `out`, bicubic and antialiased.

    OpenCV's bicubic filter skips pixels when it shrinks. With a blur before it, the result differs from
    Pillow's by less than a percent, in a sixth of the time.
    """
    height, width, _ = out.shape
    down, across = array.shape[0] // (_GAP * height), array.shape[1] // (_GAP * width)
    if max(down, across) > 1:  # a wide blur of a large image would take seconds
        smaller = (array.shape[1] // max(across, 1), array.shape[0] // max(down, 1))
        array = cv2.resize(array, smaller, interpolation=cv2.INTER_AREA)
    shrink = max(array.shape[0] / height, array.shape[1] / width)
    if shrink > decode.VISIBLE:
        side = 2 * math.ceil(shrink) - 1
        sigma = 0.0 if 1.75 < shrink <= 2 else _SIGMA * shrink  # 0: weights 1 2 1, much faster
        blurred = _scratch_buffer(*array.shape[:2])
        array = cv2.GaussianBlur(array, (side, side), sigma, dst=blurred, borderType=cv2.BORDER_REPLICATE)
    cv2.resize(array, (width, height), dst=out, interpolation=cv2.INTER_CUBIC)


def _scratch_buffer(height: int, width: int) -> np.ndarray:
    """Return a thread-local buffer [height, width, 3]: allocating one takes as long as resizing."""
    size = 3 * height * width
    if size > _LARGEST_SCRATCH:
        return np.empty((height, width, 3), np.uint8)
    if not hasattr(_local, "scratch"):
        _local.scratch = np.empty(_LARGEST_SCRATCH, np.uint8)
    return _local.scratch[:size].reshape(height, width, 3)


def _scaled(start: int, length: int, reduction: int) -> slice:
    return slice(round(start / reduction), round((start + length) / reduction))


def _central_part(array: np.ndarray) -> np.ndarray:
    """Return the central part of a long image, more than enough for a central square."""
    longest = 2 * min(array.shape[:2])
    top, left = (max(0, length - longest) // 2 for length in array.shape[:2])
    return array[top : top + longest, left : left + longest]
