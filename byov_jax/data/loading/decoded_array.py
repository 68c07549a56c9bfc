"""Decode many images into one array: in threads, in a fixed order, within the machine's memory."""

import math
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from byov_jax.data.loading import decode
from byov_jax.errors import printable, reason

LARGEST_SHARE = 0.5  # of the machine's memory; training needs the rest
_AHEAD = 32  # images submitted per thread
_MAX_THREADS = 32


def decode_all(
    names: Sequence[str | Path],
    open_image: Callable[[int], decode.Stream],
    *,
    resize: int = 0,
    threads: int = 0,
    remedy: str = "remove or replace what cannot be read",
) -> UInt8[np.ndarray, "n height width channels"]:
    """Decode all images: one channel if every image is gray, three otherwise.

    Args:
      names: of the images, for messages, [n].
      open_image: returns the bytes of image i; called from several threads.
      resize: side of the central squares; 0 keeps images unchanged, which must then have one size.
      threads: number of threads, 0 for one per core; the result does not depend on it.
      remedy: what the message tells the user to do about unreadable images.
    """

    def attempt(i: int) -> np.ndarray | Exception:
        try:
            with open_image(i) as stream:
                return decode.decode_pixels(stream, resize)
        except Exception as error:  # Pillow raises arbitrary exceptions on damaged files
            return error

    first, images = 0, None
    errors: list[tuple[int, Exception]] = []
    threads = threads or min(os.cpu_count() or 1, _MAX_THREADS)
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore")  # about damaged metadata
        for start in range(0, len(names), _AHEAD * threads):
            window = range(start, min(start + _AHEAD * threads, len(names)))
            for i, image in zip(window, pool.map(attempt, window), strict=True):
                if isinstance(image, Exception):
                    errors.append((i, image))
                    continue
                if images is None:
                    first, images = i, allocate((len(names), *image.shape))
                if image.shape[:2] != images.shape[1:3]:
                    raise ValueError(
                        f"{printable(names[first])} is {_size(images[first])}, "
                        f"{printable(names[i])} is {_size(image)}: "
                        "set config.data.resize to the side that all images get"
                    )
                if image.shape[2] > images.shape[3]:  # the first colour image after gray ones
                    images = _to_rgb(images)
                images[i] = image
    if errors:
        i, error = errors[0]
        more = f", nor can {len(errors) - 1:,} more" if len(errors) > 1 else ""
        raise ValueError(
            f"{printable(names[i])} cannot be read as an image ({reason(error)}){more}: {remedy}"
        )
    if images is None:
        raise ValueError("there are no images to read")
    return images


def resize_all(
    image: UInt8[np.ndarray, "n height width channels"], resize: int
) -> UInt8[np.ndarray, "n new_height new_width channels"]:
    """Resize the central squares of decoded images to side `resize`; 0 keeps images unchanged."""
    shape = (len(image), resize, resize, image.shape[-1])
    if not resize or image.shape == shape:
        return image
    result = allocate(shape)
    for i, pixels in enumerate(image):
        pil = Image.fromarray(pixels if shape[-1] == 3 else pixels[..., 0])
        result[i] = np.asarray(decode.resize_central_square(pil, resize)).reshape(shape[1:])
    return result


def allocate(shape: tuple[int, int, int, int]) -> UInt8[np.ndarray, "n height width channels"]:
    """Return an empty array [n, height, width, channels]; too large for the machine is a ValueError."""
    need, limit = math.prod(shape), LARGEST_SHARE * machine_memory()
    if need > limit:
        count, height, width, channels = shape
        side = max(1, math.isqrt(int(limit / (count * channels))))
        raise ValueError(
            f"{count:,} images of {width}x{height} need {need / 2**30:.1f} GiB of memory, "
            f"the limit is {limit / 2**30:.1f} GiB, half of what this machine has: "
            f"set config.data.resize to {side} or less"
        )
    return np.empty(shape, np.uint8)


def machine_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _to_rgb(image: np.ndarray) -> np.ndarray:
    rgb = allocate((*image.shape[:3], 3))
    rgb[:] = image
    return rgb


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"
