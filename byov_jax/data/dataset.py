"""The data contract: a `Dataset` holds arrays, a `SourceDataset` reads images one by one."""

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Int32, UInt8

from byov_jax.errors import ImageError, reason

T = TypeVar("T")

Pixels = Any
"""uint8 [n, height, width, channels]: a NumPy array, or `LazyImages`, which behaves like one."""

NO_LABEL = -1
ON_ERROR = ("replace", "raise")
"""Allowed policies for images that cannot be read."""

MAX_REPLACED = 1000
"""Consecutive unreadable images after which `read_or_replace` gives up."""

_MAX_LABEL = 10**6  # larger labels are damage: no data set has so many classes


class Images(NamedTuple):
    """Labelled images.

    Attributes:
      image: uint8 values, [n, height, width, channels].
      label: class index, int32 [n]: an array, or `LazyLabels`, which behaves like one.
    """

    image: Pixels
    label: Any


class UnlabelledImages(NamedTuple):
    """Images without labels: `Images` whose `label` is None."""

    image: Pixels
    label: None = None


class Dataset(NamedTuple):
    """Both splits, the class names, and a description of how the splits were made."""

    train: Images
    test: Images
    classes: tuple[str, ...]
    description: str = ""


class Unlabelled(NamedTuple):
    """A data set without labels: the attributes of `Dataset`, with no classes."""

    train: UnlabelledImages
    test: UnlabelledImages
    classes: tuple[()] = ()
    description: str = ""


def from_arrays(
    path: Path,
    train_image: np.ndarray,
    train_label: np.ndarray,
    test_image: np.ndarray,
    test_label: np.ndarray,
    classes: np.ndarray | None = None,
) -> Dataset:
    """Return the arrays as a `Dataset`; wrong types, shapes or labels are a ValueError that names `path`.

    Without `classes`, classes are named "0", "1", ... up to the largest label.
    """
    train, test = (
        _checked_images(path, train_image, train_label),
        _checked_images(path, test_image, test_label),
    )
    if train.image.shape[1:] != test.image.shape[1:]:
        raise ValueError(
            f"{path}: training images are {train.image.shape[1:]}, test images {test.image.shape[1:]}"
        )
    largest = max(train.label.max(), test.label.max())
    names = np.arange(largest + 1) if classes is None else classes
    if names.ndim != 1 or largest >= len(names):
        raise ValueError(
            f"{path}: labels go up to {largest}, which needs {largest + 1} classes; they are {names.shape}"
        )
    return Dataset(train, test, tuple(str(name) for name in names))


def _checked_images(path: Path, image: np.ndarray, label: np.ndarray) -> Images:
    if image.dtype != np.uint8 or image.ndim != 4 or image.shape[-1] not in (1, 3) or not image.size:
        raise ValueError(
            f"{path}: images are {image.dtype} {image.shape}; expected uint8 [n, height, width, 1 or 3] "
            "with at least one pixel"
        )
    if label.shape != (len(image),) or not np.issubdtype(label.dtype, np.integer):
        raise ValueError(f"{path}: labels are {label.dtype} {label.shape}; expected {len(image)} integers")
    if label.min() < 0 or label.max() > _MAX_LABEL:
        raise ValueError(f"{path}: labels are {label.min()} to {label.max()}; expected classes from 0")
    return Images(image, label.astype(np.int32))


class Record(NamedTuple):
    """One image as its source stores it.

    Attributes:
      image: the bytes of an image file, or uint8 values [height, width, channels].
      label: class index, -1 for none.
    """

    image: bytes | np.ndarray
    label: int


@runtime_checkable
class Source(Protocol):
    """Random access to the images of one split. Thread-safe and picklable; opens files on first use.

    Optional members: `label`, int32 [n], where labels are known without reading images; `file_names()`, the
    base names of all images as bytes; `changed_folder()`, a folder in which files were added or removed since
    the source was opened, or None.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Record: ...

    def name(self, i: int) -> str:
        """Return the name of image `i` for messages."""
        ...


class SourceDataset(NamedTuple):
    """Both splits as sources, the class names (empty without labels), a description, a remedy for damage."""

    train: Source
    test: Source
    classes: tuple[str, ...]
    description: str = ""
    remedy: str = "remove or replace what cannot be read"


class UnreadableImage(NamedTuple):
    """The name of an image that cannot be read, and why."""

    name: str
    reason: str


def read_image(source: Source, i: int, decode: Callable[[bytes | np.ndarray], T]) -> tuple[T, int]:
    """Return `decode(image i)` and the label; any failure is an `ImageError`."""
    try:
        record = source[i]
        return decode(record.image), record.label
    except Exception as error:  # Pillow raises arbitrary exceptions on damaged files
        raise ImageError(source.name(i), reason(error)) from error


def read_or_replace(
    source: Source, i: int, decode: Callable[[bytes | np.ndarray], T]
) -> tuple[T, int, list[UnreadableImage]]:
    """Return the first readable image from `i` on, its label, and the unreadable images before it.

    The search wraps around at the end and depends on nothing but the source.
    """
    unreadable: list[UnreadableImage] = []
    for candidate in range(i, i + min(len(source), MAX_REPLACED)):
        try:
            result, label = read_image(source, candidate % len(source), decode)
            return result, label, unreadable
        except ImageError as error:
            unreadable.append(UnreadableImage(error.name, error.reason))
    last = unreadable[-1]
    raise ImageError(last.name, f"{last.reason}; nor can the {len(unreadable) - 1:,} before it")


class ArraySource:
    """A source of images that are already in memory."""

    def __init__(
        self, image: UInt8[np.ndarray, "n height width channels"], label: Int32[np.ndarray, "n"], name: str
    ) -> None:
        self.image, self.label, self._name = image, label, name

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, i: int) -> Record:
        return Record(self.image[i], int(self.label[i]))

    def name(self, i: int) -> str:
        return f"image {i} of {self._name}"


class PackedStrings:
    """Strings in one bytes object: a million file names take little more memory than their characters."""

    def __init__(self, strings: Iterable[str]) -> None:
        encoded = [os.fsencode(string) for string in strings]
        self._offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._bytes = b"".join(encoded)

    def __getitem__(self, i: int) -> str:
        return os.fsdecode(self._bytes[self._offsets[i] : self._offsets[i + 1]])

    def base_names(self) -> list[bytes]:
        """Return the part of each string after its last slash."""
        offsets = self._offsets.tolist()
        return [self._bytes[start:end].rpartition(b"/")[2] for start, end in itertools.pairwise(offsets)]
