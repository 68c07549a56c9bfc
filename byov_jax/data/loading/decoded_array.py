"""Many images -> one array: decoded in threads, in a fixed order, within the memory of the machine."""

import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from byov_jax.data.loading import decode

LARGEST_SHARE = 0.5  # of the machine's memory; training needs the rest
_CHUNK = 16  # images that a thread decodes at a time
_MOST_THREADS = 32


def read(
    names: Sequence[str | Path],
    open_image: Callable[[int], decode.Stream],
    *,
    resize: int = 0,
    threads: int = 0,
    remedy: str = "remove or replace what cannot be read",
) -> UInt8[np.ndarray, "n height width channels"]:
    """Decodes every image: one channel if all of them are gray, three otherwise.

    Args:
      names: what to call each image in an error, [n].
      open_image: gives the bytes of image i; called from several threads.
      resize: side of the central squares; 0 leaves images as they are, which must all have the same size.
      threads: how many decode at once, 0 for one on each core; the result does not depend on it.
      remedy: what to do about images that cannot be read.
    """
    first, stacked = 0, None
    bad: list[tuple[int, Exception]] = []
    threads = threads or min(os.cpu_count() or 1, _MOST_THREADS)
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore")  # of damaged metadata
        decode_one = _decoder(open_image, resize)
        for i, found in enumerate(_in_order(pool, decode_one, len(names), ahead=2 * threads)):
            if isinstance(found, Exception):
                bad.append((i, found))
                continue
            if stacked is None:
                first, stacked = i, allocate((len(names), *found.shape))
            if found.shape[:2] != stacked.shape[1:3]:
                raise ValueError(
                    f"{show(names[first])} is {_size(stacked[first])}, {show(names[i])} is {_size(found)}: "
                    "set config.data.resize to the side that all images get"
                )
            if found.shape[2] > stacked.shape[3]:  # the first colour image after gray ones
                stacked = _to_rgb(stacked)
            stacked[i] = found
    if bad:
        i, error = bad[0]
        more = f", nor can {len(bad) - 1:,} more" if len(bad) > 1 else ""
        raise ValueError(f"{show(names[i])} cannot be read as an image ({reason(error)}){more}: {remedy}")
    if stacked is None:
        raise ValueError("there are no images to read")
    return stacked


def resized(
    image: UInt8[np.ndarray, "n height width channels"], resize: int
) -> UInt8[np.ndarray, "n new_height new_width channels"]:
    """Images that are decoded already, as central squares of side `resize`; 0 leaves them as they are."""
    shape = (len(image), resize, resize, image.shape[-1])
    if not resize or image.shape == shape:
        return image
    result = allocate(shape)
    for i, one in enumerate(image):
        small = decode.fit(Image.fromarray(one if shape[-1] == 3 else one[..., 0]), resize)
        result[i] = np.asarray(small).reshape(shape[1:])
    return result


def allocate(shape: tuple[int, int, int, int]) -> UInt8[np.ndarray, "n height width channels"]:
    """An array for images of `shape` [n, height, width, channels], if the machine has the memory for it."""
    need, limit = math.prod(shape), LARGEST_SHARE * memory()
    if need > limit:
        count, height, width, channels = shape
        side = max(1, math.isqrt(int(limit / (count * channels))))
        raise ValueError(
            f"{count:,} images of {width}x{height} need {need / 2**30:.1f} GiB of memory, "
            f"the limit is {limit / 2**30:.1f} GiB, half of what this machine has: "
            f"set config.data.resize to {side} or less"
        )
    return np.empty(shape, np.uint8)


def memory() -> int:
    """Bytes of memory in this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def show(name: str | Path) -> str:
    """A name as it is, unless it would break the line."""
    return str(name) if str(name).isprintable() else repr(str(name))


def reason(error: Exception) -> str:
    """What an error says, in one line and without the name of the file."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _decoder(
    open_image: Callable[[int], decode.Stream], resize: int
) -> Callable[[range], list[np.ndarray | Exception]]:
    def attempt(i: int) -> np.ndarray | Exception:
        try:
            with open_image(i) as stream:
                return decode.pixels(stream, resize)
        except Exception as error:  # on damaged files Pillow raises whatever its readers run into
            return error

    return lambda chunk: [attempt(i) for i in chunk]


def _in_order(
    pool: ThreadPoolExecutor, decode_chunk: Callable[[range], list], count: int, ahead: int
) -> Iterator[np.ndarray | Exception]:
    """Each image, or why it cannot be read; decoded at most `ahead` chunks before it is asked for."""
    waiting: deque[Future] = deque()
    for start in range(0, count, _CHUNK):
        waiting.append(pool.submit(decode_chunk, range(start, min(start + _CHUNK, count))))
        if len(waiting) > ahead:
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()


def _to_rgb(image: np.ndarray) -> np.ndarray:
    wide = allocate((*image.shape[:3], 3))
    wide[:] = image
    return wide


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"
