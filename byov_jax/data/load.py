"""The data set that a config names: read whole into memory, or decoded as it is needed."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from byov_jax.data import registry
from byov_jax.data.dataset import Dataset, Images, Unlabelled, UnlabelledImages
from byov_jax.data.loading import lazy
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.data.records import Arrays, Record, Source


def load(section: Mapping[str, Any], size: int) -> Dataset | Unlabelled:
    """A data set whose images are arrays, or look like arrays.

    Args:
      section: `config["data"]`.
      size: side of the central crops that streamed images are looked at with, beside training.
    """
    if section["loader"] == "memory":
        return registry.load(section["source"], resize=section["resize"])
    found = registry.open(section["source"])
    on_error = section.get("on_error", "replace")
    train, test = (LazyImages(part, size, on_error) for part in (found.train, found.test))
    if not found.classes:
        return Unlabelled(UnlabelledImages(train), UnlabelledImages(test), (), found.description)
    labels = [lazy.labels(image.source) for image in (train, test)]
    for split, label in zip(("train", "test"), labels, strict=True):
        if isinstance(label, np.ndarray) and label.min() < 0:
            raise ValueError(f"{section['source']}: {split} has images without a label")
    return Dataset(Images(train, labels[0]), Images(test, labels[1]), found.classes, found.description)


def some(image: np.ndarray | LazyImages, rows: np.ndarray) -> np.ndarray | LazyImages:
    """Some of the images, of the same kind: nothing is decoded yet."""
    if isinstance(image, LazyImages):
        return LazyImages(Chosen(image.source, rows), image.shape[1], image.on_error)
    return image[rows]


def digest(*parts: Images | UnlabelledImages) -> str:
    """What images and labels are, in 16 letters, wherever they lie.

    Of images in memory the pixels count; of those that are decoded as they are needed, the names of the files
    without their folders. Labels that would have to be read for it do not count.
    """
    found = hashlib.sha256()
    for image, label in parts:
        found.update(_of_names(image) if isinstance(image, LazyImages) else _of_pixels(image))
        if isinstance(label, np.ndarray):
            found.update(np.ascontiguousarray(label, np.int32).data)
    return found.hexdigest()[:16]


@lru_cache(maxsize=4)  # a sweep asks again for every run
def _of_names(image: LazyImages) -> bytes:
    source = image.source
    if isinstance(source, Arrays):
        return _of_pixels(source.image)
    if hasattr(source, "file_names"):
        names: list[bytes] = source.file_names()
    else:
        names = [source.name(i).encode(errors="surrogateescape") for i in range(len(source))]
    return hashlib.sha256(b"\0".join(names)).digest()


def _of_pixels(image: np.ndarray) -> bytes:
    found = hashlib.sha256(repr((image.shape, str(image.dtype))).encode())
    found.update(np.ascontiguousarray(image).data)
    return found.digest()


class Chosen:
    """Some images of a source."""

    def __init__(self, source: Source, rows: np.ndarray) -> None:
        self._source, self._rows = source, rows
        known = getattr(source, "label", None)
        self.label = None if known is None else known[rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Record:
        return self._source[int(self._rows[i])]

    def name(self, i: int) -> str:
        """As the whole source calls it."""
        return self._source.name(int(self._rows[i]))
