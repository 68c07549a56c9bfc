"""One encoded image -> one array: 8 bits, gray or RGB, upright, square if asked for."""

from io import BufferedReader, BytesIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

# Not all that Pillow knows: its EPS reader would hand the file to Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
Stream = BufferedReader | BytesIO
GRAY = ("1", "L", "LA", "La")
_GAP = 3.0  # Pillow: from 3 on, reducing before resizing is indistinguishable from resizing alone


def pixels(stream: Stream, resize: int = 0) -> UInt8[np.ndarray, "height width channels"]:
    """The first frame of an encoded image, turned as its EXIF orientation says.

    Args:
      stream: the bytes of a JPEG, PNG, WebP, BMP, GIF, TIFF or PPM file, whatever its name.
      resize: side of the central square to return; 0 leaves the image as it is.

    Returns:
      Gray images as one channel, all others as RGB. Transparency shows black; 16 bits become 8.
    """
    try:
        image = Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        empty = stream.seek(0, 2) == 0
        raise ValueError("it is empty" if empty else f"it is none of {', '.join(FORMATS)}") from None
    with image:
        count, limit = image.width * image.height, Image.MAX_IMAGE_PIXELS
        if limit is not None and count > limit:  # up to twice as many, Pillow itself only warns
            raise ValueError(f"Image size ({count} pixels) exceeds limit of {limit} pixels")
        if resize:  # a JPEG is decoded at a half, a quarter or an eighth, where that leaves enough
            image.draft(None, (round(_GAP * resize), round(_GAP * resize)))
        ImageOps.exif_transpose(image, in_place=True)
        array = np.asarray(fit(_eight_bits(image), resize))
    return array if array.ndim == 3 else array[..., None]


def fit(image: Image.Image, resize: int) -> Image.Image:
    """The central square of `image`, its side resized to `resize` pixels; 0 leaves it as it is."""
    if not resize or image.size == (resize, resize):
        return image
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) / 2, (height - short) / 2
    # The box is where the result comes from; pixels beside it still count for its edges.
    return image.resize(
        (resize, resize),
        Image.Resampling.BICUBIC,
        box=(left, top, left + short, top + short),
        reducing_gap=_GAP,
    )


def _eight_bits(image: Image.Image) -> Image.Image:
    """`image` in mode L or RGB."""
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
