"""The contract of all data sets that are read image by image: `len`, `[i] -> Record`, `name(i)`."""

import itertools
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Int32, UInt8

from byov_jax.data.loading import decoded_array
from byov_jax.errors import ImageError

T = TypeVar("T")

NO_LABEL = -1
ON_ERROR = ("replace", "raise")
"""What may happen where an image cannot be read."""

MOST_IN_A_ROW = 1000
"""Images that may be replaced by the next one before something else must be wrong."""


class Record(NamedTuple):
    """One image as its source has it.

    Attributes:
      image: the bytes of an image file, or values 0 to 255 [height, width, channels].
      label: index into the names of the classes, -1 for none.
    """

    image: bytes | np.ndarray
    label: int


@runtime_checkable
class Source(Protocol):
    """Images in a fixed order, each read when it is asked for, from any thread.

    It can be pickled, to be read by other processes as well, and opens files when it first needs them. If it
    knows its labels without reading images, it has them as `label`, int32 [n]. If its images are files, it
    has their names without folders, all at once, as `file_names()`. If it can tell whether files were added
    or removed since it was opened, `changed()` is the folder, None if none were.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Record: ...

    def name(self, i: int) -> str:
        """What to call image i in a message."""
        ...


class Records(NamedTuple):
    """Both splits, the names of the classes (none without labels), how it was made, a remedy for damage."""

    train: Source
    test: Source
    classes: tuple[str, ...]
    description: str = ""
    remedy: str = "remove or replace what cannot be read"


class Bad(NamedTuple):
    """An image that could not be read: what its source calls it, and what is wrong with it."""

    name: str
    reason: str


def attempt(source: Source, i: int, work: Callable[[bytes | np.ndarray], T]) -> tuple[T, int]:
    """What `work` makes of image i, and its label; an `ImageError` if the image cannot be read."""
    try:
        record = source[i]
        return work(record.image), record.label
    except Exception as error:  # on damaged files Pillow raises whatever its readers run into
        raise ImageError(source.name(i), decoded_array.reason(error)) from error


def readable(source: Source, i: int, work: Callable[[bytes | np.ndarray], T]) -> tuple[T, int, list[Bad]]:
    """What `work` makes of image i, or of the next one that can be read; its label; and what could not be.

    Which image takes the place of another depends on the source alone. After the last comes the first.
    """
    bad: list[Bad] = []
    for place in range(i, i + min(len(source), MOST_IN_A_ROW)):
        try:
            made, label = attempt(source, place % len(source), work)
            return made, label, bad
        except ImageError as error:
            bad.append(Bad(error.name, error.reason))
    raise ImageError(bad[-1].name, f"{bad[-1].reason}; nor can the {len(bad) - 1:,} before it")


class Arrays:
    """Images that are in memory already."""

    def __init__(
        self,
        image: UInt8[np.ndarray, "n height width channels"],
        label: Int32[np.ndarray, "n"],
        place: str,
    ) -> None:
        self.image, self.label, self._place = image, label, place

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, i: int) -> Record:
        return Record(self.image[i], int(self.label[i]))

    def name(self, i: int) -> str:
        """Its number and where it is from."""
        return f"image {i} of {self._place}"


class Names:
    """Many strings in little memory: a million file names take as much as their letters."""

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._letters = b"".join(encoded)

    def __getitem__(self, i: int) -> str:
        return os.fsdecode(self._letters[self._starts[i] : self._starts[i + 1]])

    def without_folders(self) -> list[bytes]:
        """All of them, each from its last slash on."""
        starts = self._starts.tolist()
        return [self._letters[start:end].rpartition(b"/")[2] for start, end in itertools.pairwise(starts)]
