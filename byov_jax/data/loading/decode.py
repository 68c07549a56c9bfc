"""Decode one image: with Pillow to gray or RGB, or with simplejpeg to RGB at a reduced scale."""

import io
import math
from collections.abc import Callable
from io import BufferedReader, BytesIO
from typing import NamedTuple

import numpy as np
import simplejpeg
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

# A subset of Pillow's formats: its EPS reader, for one, would run Ghostscript on the file.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
Stream = BufferedReader | BytesIO
GRAY = ("1", "L", "LA", "La")

VISIBLE = 1.15
"""Shrinking by a smaller factor makes no visible difference."""

_GAP = 3.0  # Pillow: from 3 on, reducing before resizing is indistinguishable from resizing alone
_REDUCTIONS = (8, 4, 2)  # the scales at which decoding a JPEG is fast
_UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: np.fliplr,
    3: lambda array: np.rot90(array, 2),
    4: np.flipud,
    5: lambda array: array.swapaxes(0, 1),
    6: lambda array: np.rot90(array, -1),
    7: lambda array: np.rot90(array, 2).swapaxes(0, 1),
    8: np.rot90,
}
"""The rotation or reflection that undoes each EXIF orientation."""


def decode_pixels(stream: Stream, resize: int = 0) -> UInt8[np.ndarray, "height width channels"]:
    """Decode the first frame of an image, with its EXIF orientation applied.

    Args:
      stream: the bytes of a JPEG, PNG, WebP, BMP, GIF, TIFF or PPM file, whatever its name.
      resize: side of the central square to return; 0 keeps the image unchanged.

    Returns:
      One channel for gray images, RGB otherwise. Transparency is blended with black; 16 bits become 8.
    """
    try:
        image = Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        empty = stream.seek(0, 2) == 0
        raise ValueError("it is empty" if empty else f"it is none of {', '.join(FORMATS)}") from None
    with image:
        count, limit = image.width * image.height, Image.MAX_IMAGE_PIXELS
        if limit is not None and count > limit:  # Pillow itself only warns up to twice the limit
            raise ValueError(f"Image size ({count} pixels) exceeds limit of {limit} pixels")
        if resize:  # decode a JPEG at 1/2, 1/4 or 1/8 where that leaves enough pixels
            image.draft(None, (round(_GAP * resize), round(_GAP * resize)))
        ImageOps.exif_transpose(image, in_place=True)
        array = np.asarray(resize_central_square(_to_8_bits(image), resize))
    return array if array.ndim == 3 else array[..., None]


def resize_central_square(image: Image.Image, resize: int) -> Image.Image:
    """Return the central square of `image`, resized to side `resize`; 0 keeps the image unchanged."""
    if not resize or image.size == (resize, resize):
        return image
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) / 2, (height - short) / 2
    # Unlike cropping first, `box` lets pixels outside of the square contribute to its edges.
    return image.resize(
        (resize, resize),
        Image.Resampling.BICUBIC,
        box=(left, top, left + short, top + short),
        reducing_gap=_GAP,
    )


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Convert `image` to mode L or RGB."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        value = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((value + 128) // 257).astype(np.uint8))  # 65535 = 257 * 255
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels (mode {image.mode}) have no fixed range: convert it to 8 or 16 bits")
    mode = "L" if image.mode in GRAY else "RGB"
    if image.has_transparency_data:
        image = image.convert("LA" if mode == "L" else "RGBA")
        black = Image.new(mode, image.size)
        black.paste(image.convert(mode), mask=image.getchannel("A"))
        return black
    return image if image.mode == mode else image.convert(mode)


class OpenedImage(NamedTuple):
    """The upright size of an image, and a function that decodes it at the smallest sufficient scale.

    `decode(side, size)` returns uint8 RGB [height, width, 3], divided by a whole number that still leaves
    `side` pixels of the image at least `size` pixels.
    """

    height: int
    width: int
    decode: Callable[[int, int], np.ndarray]


def open_image(image: bytes | np.ndarray) -> OpenedImage:
    """Open the image of a `Record`: JPEGs are decoded on demand by simplejpeg, others now by Pillow."""
    if isinstance(image, bytes) and image.startswith(b"\xff\xd8"):
        try:
            return _open_jpeg(image)
        except ValueError:  # Pillow supports more variants of JPEG and tolerates more damage
            pass
    array = _to_rgb(decode_pixels(io.BytesIO(image)) if isinstance(image, bytes) else image)
    return OpenedImage(array.shape[0], array.shape[1], lambda side, size: array)


def _open_jpeg(image: bytes) -> OpenedImage:
    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(image)
    if colorspace in ("CMYK", "YCCK") or height * width > (Image.MAX_IMAGE_PIXELS or math.inf):
        raise ValueError(f"left to Pillow: {colorspace}, {width}x{height}")
    orientation = _orientation(image)
    upright = _UPRIGHT.get(orientation)

    def decode(side: int, size: int) -> np.ndarray:
        reduction = next((factor for factor in _REDUCTIONS if side // factor >= size), 1)
        try:
            array = simplejpeg.decode_jpeg(
                image,
                fastupsample=side > VISIBLE * size,  # affects chroma only, invisible once shrunk
                min_height=-(-height // reduction),
                min_width=-(-width // reduction),
            )
        except ValueError:
            return _to_rgb(decode_pixels(io.BytesIO(image)))
        return array if upright is None else np.ascontiguousarray(upright(array))

    size = (width, height) if orientation in (5, 6, 7, 8) else (height, width)
    return OpenedImage(*size, decode)


def _orientation(image: bytes) -> int:
    """Return the EXIF orientation of a JPEG; Pillow parses it only if there is an APP1 segment."""
    position = 2
    while image[position : position + 1] == b"\xff" and image[position + 1 : position + 2] != b"\xda":
        marker = image[position + 1 : position + 2]
        if marker == b"\xe1":
            with Image.open(io.BytesIO(image), formats=["JPEG"]) as opened:
                return opened.getexif().get(ExifTags.Base.Orientation, 1)
        if marker == b"\xff":  # any number of them may precede a marker
            position += 1
        else:
            position += 2 + int.from_bytes(image[position + 2 : position + 4], "big")
    return 1


def _to_rgb(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))
