"""An image before it is decoded: its size is known, its pixels come upright, RGB, and no larger than needed.

JPEGs are decoded by simplejpeg, at a half, a quarter or an eighth where that leaves enough pixels; Pillow
decodes what simplejpeg cannot.
"""

import io
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import ExifTags, Image

from byov_jax.data.loading import decode

VISIBLE = 1.15
"""Shrinking an image by less looks like no shrinking."""

_REDUCTIONS = (8, 4, 2)  # the scales at which decoding a JPEG is fast
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: np.fliplr,
    3: lambda array: np.rot90(array, 2),
    4: np.flipud,
    5: lambda array: array.swapaxes(0, 1),
    6: lambda array: np.rot90(array, -1),
    7: lambda array: np.rot90(array, 2).swapaxes(0, 1),
    8: np.rot90,
}
"""What makes an image upright, by its EXIF orientation."""


class Picture(NamedTuple):
    """An image that is not decoded yet, and its size when upright.

    `at(side, size)` decodes it to [height, width, 3] divided by a whole number: as small as it may be if
    `side` of its pixels are to become `size` in the end.
    """

    height: int
    width: int
    at: Callable[[int, int], np.ndarray]


def open(image: bytes | np.ndarray) -> Picture:
    """The picture of an image as a `Record` has it."""
    if isinstance(image, bytes) and image.startswith(b"\xff\xd8"):
        try:
            return _jpeg(image)
        except ValueError:  # Pillow reads more kinds of JPEG, and repairs more damage
            pass
    array = _rgb(decode.pixels(io.BytesIO(image)) if isinstance(image, bytes) else image)
    return Picture(array.shape[0], array.shape[1], lambda side, size: array)


def _jpeg(image: bytes) -> Picture:
    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(image)
    if colorspace in ("CMYK", "YCCK") or height * width > (Image.MAX_IMAGE_PIXELS or math.inf):
        raise ValueError(f"left to Pillow: {colorspace}, {width}x{height}")
    orientation = _orientation(image)
    turn = _TURNS.get(orientation)

    def at(side: int, size: int) -> np.ndarray:
        reduction = next((times for times in _REDUCTIONS if side // times >= size), 1)
        try:
            array = simplejpeg.decode_jpeg(
                image,
                fastupsample=side > VISIBLE * size,  # of colours alone: not to be seen once shrunk
                min_height=-(-height // reduction),
                min_width=-(-width // reduction),
            )
        except ValueError:
            return _rgb(decode.pixels(io.BytesIO(image)))
        return array if turn is None else np.ascontiguousarray(turn(array))

    return Picture(width, height, at) if orientation in (5, 6, 7, 8) else Picture(height, width, at)


def _orientation(image: bytes) -> int:
    """How a JPEG is to be turned. Pillow is asked only if there is metadata that could say."""
    place = 2
    while image[place : place + 1] == b"\xff" and image[place + 1 : place + 2] != b"\xda":
        if image[place + 1 : place + 2] == b"\xe1":
            with Image.open(io.BytesIO(image), formats=["JPEG"]) as found:
                return found.getexif().get(ExifTags.Base.Orientation, 1)
        place += 2 + int.from_bytes(image[place + 2 : place + 4], "big")
    return 1


def _rgb(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))
