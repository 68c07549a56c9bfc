"""The batches of a training as they are needed: read, decoded and cropped ahead, by threads and processes.

rows = np.arange(256)
with batches(source, seed=0, batch_size=256, rows=rows, first=0, steps=9, size=224, crops=2) as data:
    for batch in data:
        ...

Which images a batch holds and how they are cropped depends on (seed, step) alone: on no host, no worker, and
not on where a run was interrupted.
"""

import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import grain
import numpy as np
from absl import flags
from grain.experimental import ThreadPrefetchIterDataset
from jaxtyping import Int32, UInt8

from byov_jax.data.loading import crops as cropping
from byov_jax.data.loading.order import batch_indices
from byov_jax.data.records import ON_ERROR, Bad, Source, attempt, readable

THREADS = 2
"""In every worker process: while one waits for a file, the other decodes."""

_MOST_THREADS = 16  # in a process that decodes alone
_PART = 8  # images that are decoded, and handed from process to process, at a time
_PARTS_AHEAD = 4  # finished parts that wait in each worker


class HostBatch(NamedTuple):
    """What one host feeds to its devices.

    Attributes:
      image: crops, values 0 to 255, [rows, crops, size, size, 3].
      label: index into the names of the classes, -1 for none, [rows].
      bad: images that could not be read; the next ones that could be are in their places.
    """

    image: UInt8[np.ndarray, "rows crops size size 3"]
    label: Int32[np.ndarray, "rows"]
    bad: tuple[Bad, ...] = ()


def batches(
    source: Source,
    *,
    seed: int,
    batch_size: int,
    rows: np.ndarray,
    first: int,
    steps: int,
    size: int,
    crops: int,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
    workers: int = 0,
    threads: int = 0,
    on_error: str = "raise",
) -> "Batches":
    """The batches of steps `first` to `steps - 1`.

    Args:
      source: the images.
      seed: decides the order of the images and their crops.
      batch_size: of the global batch, over all hosts.
      rows: which of its rows this host feeds, integers [n].
      first: the first step, 0 unless a run goes on.
      steps: the step before which to end.
      size: side of the crops.
      crops: how many of each image.
      area: range of a crop's fraction of the image's area.
      aspect: range of its width / height, drawn log-uniformly.
      workers: processes that read and decode, 0 for threads of this process alone.
      threads: in each process; 0 for two in a worker, or one for every core if this process is alone.
      on_error: an image that cannot be read can "raise" `ImageError` where its batch is asked for, or be
        "replace"d by the next one of the source that can be read, with that image's label, cropped by the
        same random numbers. After `records.MOST_IN_A_ROW` it raises all the same.

    Returns:
      An iterator and context manager: close it, or leave its context, to end the workers.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error={on_error!r} must be one of {', '.join(ON_ERROR)}")
    if not 0 <= first <= steps:
        raise ValueError(f"first={first} must be between 0 and steps={steps}")
    for name, value, least in (
        ("size", size, 1),
        ("crops", crops, 1),
        ("workers", workers, 0),
        ("threads", threads, 0),
    ):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if not len(rows) or min(rows) < 0 or max(rows) >= batch_size:
        raise ValueError(f"rows must be some of 0 to {batch_size - 1}, got {rows}")
    batch_indices(seed, first, len(source), batch_size)  # refuses what is impossible here, not in a worker
    replace = on_error == "replace"
    parts = Parts(
        source, seed, batch_size, np.asarray(rows), first, steps, size, crops, area, aspect, replace
    )
    return Batches(parts, workers, threads)


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Batches(Iterator[HostBatch]):
    """Iterates over the batches of `parts`."""

    def __init__(self, parts: "Parts", workers: int, threads: int) -> None:
        if not flags.FLAGS.is_parsed():  # grain reads its flags, which only absl's own programs parse
            flags.FLAGS.mark_as_parsed()
        count = threads or (THREADS if workers else min(cores(), _MOST_THREADS))
        reading = grain.ReadOptions(num_threads=count, prefetch_buffer_size=2 * count)
        processes = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_PARTS_AHEAD)
        data = grain.MapDataset.source(parts).to_iter_dataset(reading)
        data = data.mp_prefetch(processes, _begin_worker).batch(parts.in_step, batch_fn=_joined)
        self._open: list[Any] = [iter(ThreadPrefetchIterDataset(data, prefetch_buffer_size=1))]
        self._end = weakref.finalize(self, _end, self._open)  # at the latest when the program ends
        self._left = parts.steps - parts.first

    def __next__(self) -> HostBatch:
        if not self._left:
            self.close()
        if not self._open:
            raise StopIteration
        self._left -= 1
        return next(self._open[0])

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads and processes that read ahead."""
        self._end()


@dataclass(frozen=True)
class Parts:
    """The batches in parts of a few images, by number: what threads and workers make. See `batches`."""

    source: Source
    seed: int
    batch_size: int
    rows: np.ndarray
    first: int
    steps: int
    size: int
    crops: int
    area: tuple[float, float]
    aspect: tuple[float, float]
    replace: bool

    @property
    def in_step(self) -> int:
        """How many make up a batch."""
        return -(-len(self.rows) // _PART)

    def __len__(self) -> int:
        # Far more than anybody takes: where grain's own end is reached, shared memory is left behind.
        return (self.steps - self.first + 10**6) * self.in_step

    def __getitem__(self, number: int) -> HostBatch:
        step, part = self.first + number // self.in_step, number % self.in_step
        rows = self.rows[part * _PART : (part + 1) * _PART]
        indices = batch_indices(self.seed, step, len(self.source), self.batch_size)[rows]
        image = np.empty((len(rows), self.crops, self.size, self.size, 3), np.uint8)
        label = np.empty(len(rows), np.int32)
        bad: list[Bad] = []
        for place, (row, i) in enumerate(zip(rows.tolist(), indices.tolist(), strict=True)):
            bits = cropping.random_bits(self.seed, step, row, self.crops)
            fill = partial(
                cropping.fill_crops, bits=bits, out=image[place], area=self.area, aspect=self.aspect
            )
            if self.replace:
                _, label[place], found = readable(self.source, i, fill)
                bad += found
            else:
                _, label[place] = attempt(self.source, i, fill)
        return HostBatch(image, label, tuple(bad))


def _begin_worker(worker: int, workers: int) -> None:
    # Signals are for the process that asked for the data: to finish its step it needs the images.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A process that is killed cannot end its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end(iterators: list[Any]) -> None:
    while iterators:
        iterators.pop().close()


def _joined(parts: list[HostBatch]) -> HostBatch:
    image, label = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    return HostBatch(image, label, tuple(bad for part in parts for bad in part.bad))
