"""A source for evaluation: central crops and labels as if they were arrays, and batches of all of them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from jaxtyping import Bool, Int, Int32

from byov_jax.data.loading import crops
from byov_jax.data.records import Source, attempt
from byov_jax.errors import ImageError

GRAY = 128
"""The value of all pixels of an image that cannot be read."""

_MOST_THREADS = 32
_PART = 16  # images that a thread takes at a time


class LazyImages:
    """Looks like uint8 [n, size, size, 3]: what is asked for is decoded then, in threads.

    Attributes:
      bad: what could not be read so far, by name, and why.
    """

    dtype, ndim = np.dtype(np.uint8), 4

    def __init__(self, source: Source, size: int, on_error: str = "raise") -> None:
        """With `on_error="replace"` an image that cannot be read is gray, and noted; else an `ImageError`."""
        self.source, self.on_error = source, on_error
        self.shape = (len(source), size, size, 3)
        self.bad: dict[str, str] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice | np.ndarray | list[int]) -> np.ndarray:
        """One image by its number, or several by a slice or by integers [m]."""
        indices = np.arange(len(self))[rows]  # so that NumPy decides what is allowed
        image = np.empty((indices.size, *self.shape[1:]), np.uint8)
        crop = partial(crops.central_crop, size=self.shape[1])

        def fill(place: int, i: int) -> None:
            try:
                image[place] = attempt(self.source, i, crop)[0]
            except ImageError as error:
                if self.on_error == "raise":
                    raise
                image[place] = GRAY
                self.bad[error.name] = error.reason

        _in_threads(fill, indices.ravel())
        return image.reshape(indices.shape + self.shape[1:])

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("images that are decoded when asked for cannot be had without a copy")
        return self[:].astype(dtype or self.dtype, copy=False)


class LazyLabels:
    """Looks like int32 [n]: the labels of a source that must be read to know them, read when asked for."""

    dtype, ndim = np.dtype(np.int32), 1

    def __init__(self, source: Source) -> None:
        self._source = source
        self.shape = (len(source),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice | np.ndarray | list[int]) -> np.ndarray:
        """One label by its number, or several by a slice or by integers [m]."""
        indices = np.arange(len(self))[rows]
        label = np.empty(indices.size, np.int32)

        def fill(place: int, i: int) -> None:
            label[place] = attempt(self._source, i, lambda image: None)[1]

        _in_threads(fill, indices.ravel())
        return label.reshape(indices.shape)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)


def labels(source: Source) -> Int32[np.ndarray, "n"] | LazyLabels:
    """The labels of all images, -1 for none; `Labels` if the source must be read to know them."""
    known = getattr(source, "label", None)
    return LazyLabels(source) if known is None else known


def padded(
    count: int, batch: int, rows: Int[np.ndarray, "rows"] | None = None
) -> Iterator[tuple[Int[np.ndarray, "rows"], Bool[np.ndarray, "rows"]]]:
    """Batches with each of `count` images exactly once, the last one filled up: (which images, which count).

    Args:
      count: how many images there are.
      batch: how many make up a global batch.
      rows: which of its rows are wanted, all of them by default; each host asks for its own.
    """
    rows = np.arange(batch) if rows is None else rows
    for start in range(0, count, batch):
        places = start + rows
        yield np.minimum(places, count - 1), places < count


def _in_threads(fill: Callable[[int, int], None], indices: Int[np.ndarray, "n"]) -> None:
    """Calls `fill` with the place and the value of each index."""

    def fill_part(start: int) -> None:
        for place, i in enumerate(indices[start : start + _PART].tolist(), start):
            fill(place, i)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        for _ in pool.map(fill_part, range(0, len(indices), _PART)):
            pass
