"""Checks a data set of any kind: labels, checksums if there are any, and whether all images can be read."""

import hashlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from byov_jax.data.loading import encoded_image
from byov_jax.data.records import NO_LABEL, Arrays, Source, attempt
from byov_jax.data.sources.arrayrecord import Shards
from byov_jax.errors import ImageError

_PART = 64  # images that a process decodes at a time
_WORTH_A_PROCESS = 1000  # images: starting one takes as long as decoding so many


class Part(NamedTuple):
    """What was found in some of the images: their labels (-2 where unknown), and what is wrong."""

    label: np.ndarray
    problems: list[str]


def images(source: Source, classes: int, processes: int = 0) -> Iterator[Part]:
    """Reads and decodes every image, in order, a few at a time.

    Args:
      source: what to check.
      classes: how many there are, 0 for none.
      processes: how many decode at once, 0 for one on each core.
    """
    most = 1 if isinstance(source, Arrays) else max(1, len(source) // _WORTH_A_PROCESS)
    processes = min(processes or os.cpu_count() or 1, most)
    parts = [range(start, min(start + _PART, len(source))) for start in range(0, len(source), _PART)]
    if processes == 1:
        yield from (_check(source, classes, part) for part in parts)
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin_process, (source, classes))
    try:
        for future in [pool.submit(_check_given, part) for part in parts]:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def shards(source: Source) -> Iterator[str | None]:
    """Compares each file of a prepared data set with its checksum: None, or what is wrong."""
    if not isinstance(source, Shards):
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


def counts(label: Int[np.ndarray, "n"], classes: int) -> Int[np.ndarray, "classes"]:
    """How many images each class has."""
    return np.bincount(label[(label >= 0) & (label < classes)], minlength=classes)


def _check(source: Source, classes: int, rows: range) -> Part:
    label, problems = np.full(len(rows), -2, np.int64), []
    known = getattr(source, "label", None)
    for place, i in enumerate(rows):
        try:
            _, found = attempt(source, i, lambda image: encoded_image.open(image).at(1, 1))
        except ImageError as error:
            problems.append(str(error))
            continue
        label[place] = found
        if not (found == NO_LABEL if classes == 0 else 0 <= found < classes):
            problems.append(f"{source.name(i)} has the label {found}, there are {classes} classes")
        elif known is not None and known[i] != found:
            problems.append(f"{source.name(i)} has the label {found}, dataset.json says {known[i]}")
    return Part(label, problems)


_given: tuple[Source, int] | None = None  # to a process, once


def _begin_process(source: Source, classes: int) -> None:
    global _given
    _given = source, classes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one


def _check_given(rows: range) -> Part:
    assert _given is not None
    return _check(*_given, rows)
