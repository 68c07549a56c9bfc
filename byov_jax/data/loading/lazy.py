"""Sources that behave like arrays, for evaluation: central crops and labels, read when indexed."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from byov_jax.data.dataset import Record, Source, read_image
from byov_jax.data.loading import crops
from byov_jax.errors import ImageError

GRAY = 128
"""The pixel value of images that cannot be read."""

_MAX_THREADS = 32
_CHUNK = 16  # items per task of a thread


class _LazyArray:
    """An array whose items along the first axis are read in threads when indexed."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, rows: int | slice | np.ndarray | list[int]) -> np.ndarray:
        """Read the items at an index, a slice or integers [m]."""
        indices = np.arange(len(self))[rows]  # NumPy decides which indices are valid
        flat = indices.ravel().tolist()
        result = np.empty((len(flat), *self.shape[1:]), self.dtype)

        def read_chunk(start: int) -> None:
            for position, i in enumerate(flat[start : start + _CHUNK], start):
                result[position] = self._read(i)

        with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS)) as pool:
            for _ in pool.map(read_chunk, range(0, len(flat), _CHUNK)):
                pass
        return result.reshape(indices.shape + self.shape[1:])

    def _read(self, i: int) -> Any:
        raise NotImplementedError

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("lazily read arrays cannot be converted without a copy")
        return self[:].astype(dtype or self.dtype, copy=False)


class LazyImages(_LazyArray):
    """Central crops of a source's images, uint8 [n, size, size, 3], decoded when indexed.

    Attributes:
      unreadable: reasons by name for the images that could not be read so far.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, source: Source, size: int, on_error: str = "raise") -> None:
        """With `on_error="replace"` unreadable images are gray, otherwise they raise `ImageError`."""
        self.source, self.on_error = source, on_error
        self.shape = (len(source), size, size, 3)
        self.unreadable: dict[str, str] = {}

    def _read(self, i: int) -> Any:
        try:
            return read_image(self.source, i, lambda image: crops.central_crop(image, self.shape[1]))[0]
        except ImageError as error:
            if self.on_error == "raise":
                raise
            self.unreadable[error.name] = error.reason
            return GRAY


class LazyLabels(_LazyArray):
    """Labels of a source that must be read to know them, int32 [n], read when indexed."""

    dtype = np.dtype(np.int32)

    def __init__(self, source: Source) -> None:
        self._source, self.shape = source, (len(source),)

    def _read(self, i: int) -> int:
        return read_image(self._source, i, lambda image: None)[1]


class SubsetSource:
    """Some images of a source."""

    def __init__(self, source: Source, rows: Int[np.ndarray, "rows"]) -> None:
        self._source, self._rows = source, rows
        known = getattr(source, "label", None)
        self.label = None if known is None else known[rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Record:
        return self._source[int(self._rows[i])]

    def name(self, i: int) -> str:
        return self._source.name(int(self._rows[i]))


def take(image: np.ndarray | LazyImages, rows: Int[np.ndarray, "rows"]) -> np.ndarray | LazyImages:
    """Return a subset of the images, of the same type: lazy images stay undecoded."""
    if isinstance(image, LazyImages):
        return LazyImages(SubsetSource(image.source, rows), image.shape[1], image.on_error)
    return image[rows]


def labels(source: Source) -> Int32[np.ndarray, "n"] | LazyLabels:
    """Return the labels of all images, -1 for none; `LazyLabels` if the source must be read to know them."""
    known = getattr(source, "label", None)
    return LazyLabels(source) if known is None else known
