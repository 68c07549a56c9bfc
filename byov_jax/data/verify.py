"""Check a data set: labels, checksums if it has any, and whether every image can be decoded."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from byov_jax.data.dataset import NO_LABEL, Source, read_image
from byov_jax.data.loading import decode
from byov_jax.data.sources.arrayrecord import ShardSource
from byov_jax.errors import ImageError

UNKNOWN_LABEL = -2

_CHUNK = 64  # images per task


class CheckedImages(NamedTuple):
    """The labels of some images, `UNKNOWN_LABEL` where unreadable, and the problems found."""

    label: np.ndarray
    problems: list[str]


def check_images(source: Source, classes: int, threads: int = 0) -> Iterator[CheckedImages]:
    """Read and decode all images, and yield the result chunk by chunk, in order.

    Args:
      source: the images.
      classes: number of classes, 0 for none.
      threads: number of threads, 0 for one per core; the decoders release the GIL.
    """
    chunks = [range(start, min(start + _CHUNK, len(source))) for start in range(0, len(source), _CHUNK)]
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        yield from pool.map(lambda chunk: _check(source, classes, chunk), chunks)


def check_checksums(source: Source) -> Iterator[str | None]:
    """Compare each shard of a prepared data set with its SHA-256, and yield None or the problem."""
    if not isinstance(source, ShardSource):
        return
    for shard in source.shards:
        file = source.folder / shard.file
        try:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            yield f"{file}: {error.strerror}"
            continue
        yield (
            None if digest == shard.sha256 else f"{file} is damaged: its SHA-256 is not that of dataset.json"
        )


def class_counts(label: Int[np.ndarray, "n"], classes: int) -> Int[np.ndarray, "classes"]:
    """Return the number of images per class."""
    return np.bincount(label[(label >= 0) & (label < classes)], minlength=classes)


def _check(source: Source, classes: int, rows: range) -> CheckedImages:
    labels, problems = np.full(len(rows), UNKNOWN_LABEL, np.int64), []
    known = getattr(source, "label", None)
    for position, i in enumerate(rows):
        try:
            _, label = read_image(source, i, lambda image: decode.open_image(image).decode(1, 1))
        except ImageError as error:
            problems.append(str(error))
            continue
        labels[position] = label
        if not (label == NO_LABEL if classes == 0 else 0 <= label < classes):
            problems.append(f"{source.name(i)} has the label {label}, there are {classes} classes")
        elif known is not None and known[i] != label:
            problems.append(f"{source.name(i)} has the label {label}, dataset.json says {known[i]}")
    return CheckedImages(labels, problems)
