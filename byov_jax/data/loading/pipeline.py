"""Training batches, read, decoded and cropped ahead of time by threads and worker processes.

rows = np.arange(256)
with batches(source, seed=0, batch_size=256, rows=rows, first=0, steps=9, size=224, crops=2) as data:
    for batch in data:
        ...

The images of a batch and their crops depend on (seed, step) alone: not on the hosts, the workers, or the step
at which a run was resumed.
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

from byov_jax.data.dataset import ON_ERROR, Source, UnreadableImage, read_image, read_or_replace
from byov_jax.data.loading import crops as cropping
from byov_jax.data.loading.order import batch_indices

THREADS_PER_WORKER = 2
"""While one thread waits for a file, the other decodes."""

_MAX_THREADS = 16  # without workers
_CHUNK = 8  # images that are decoded, and passed between processes, at a time
_CHUNKS_AHEAD = 4  # finished chunks buffered in each worker


class HostBatch(NamedTuple):
    """The rows of a batch that one host feeds to its devices.

    Attributes:
      image: crops, uint8 values, [rows, crops, size, size, 3].
      label: class index, -1 for none, [rows].
      unreadable: images that could not be read and were replaced by the next readable ones.
    """

    image: UInt8[np.ndarray, "rows crops size size 3"]
    label: Int32[np.ndarray, "rows"]
    unreadable: tuple[UnreadableImage, ...] = ()


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
    """Return an iterator over the batches of steps `first` to `steps - 1`, which is also a context manager.

    Leaving the context, or `close()`, stops the workers.

    Args:
      source: the images.
      seed: of the order of the images and of their crops.
      batch_size: size of the global batch, over all hosts.
      rows: the rows of the global batch that this host feeds, integers [n].
      first: first step, 0 unless a run is resumed.
      steps: end of the range of steps, exclusive.
      size: side of the crops.
      crops: number of crops per image.
      area: range of a crop's fraction of the image's area.
      aspect: range of its width / height, drawn log-uniformly.
      workers: number of worker processes; 0 decodes in threads of this process.
      threads: threads per process; 0 for two in a worker, or one per core without workers.
      on_error: for an unreadable image, "raise" an `ImageError` when its batch is requested, or "replace" it
        by the next readable image of the source, with that image's label and the same random bits. After
        `dataset.MAX_REPLACED` in a row it raises all the same.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error={on_error!r} must be one of {', '.join(ON_ERROR)}")
    if not 0 <= first <= steps:
        raise ValueError(f"first={first} must be between 0 and steps={steps}")
    for name, value, minimum in (
        ("size", size, 1),
        ("crops", crops, 1),
        ("workers", workers, 0),
        ("threads", threads, 0),
    ):
        if value < minimum:
            raise ValueError(f"{name}={value} must be at least {minimum}")
    if not len(rows) or min(rows) < 0 or max(rows) >= batch_size:
        raise ValueError(f"rows must be some of 0 to {batch_size - 1}, got {rows}")
    batch_indices(seed, first, len(source), batch_size)  # raise here and not in a worker
    replace = on_error == "replace"
    chunks = BatchChunks(
        source, seed, batch_size, np.asarray(rows), first, steps, size, crops, area, aspect, replace
    )
    return Batches(chunks, workers, threads)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Batches(Iterator[HostBatch]):
    """Iterator over the batches that `chunks` make up."""

    def __init__(self, chunks: "BatchChunks", workers: int, threads: int) -> None:
        if not flags.FLAGS.is_parsed():  # grain reads absl flags, which only absl programs parse
            flags.FLAGS.mark_as_parsed()
        count = threads or (THREADS_PER_WORKER if workers else min(usable_cores(), _MAX_THREADS))
        reading = grain.ReadOptions(num_threads=count, prefetch_buffer_size=2 * count)
        processes = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_CHUNKS_AHEAD)
        data = grain.MapDataset.source(chunks).to_iter_dataset(reading)
        data = data.mp_prefetch(processes, _init_worker).batch(chunks.per_batch, batch_fn=_concatenate)
        self._iterators: list[Any] = [iter(ThreadPrefetchIterDataset(data, prefetch_buffer_size=1))]
        self._finalizer = weakref.finalize(self, _close, self._iterators)  # runs at exit at the latest
        self._remaining = chunks.steps - chunks.first

    def __next__(self) -> HostBatch:
        if not self._remaining:
            self.close()
        if not self._iterators:
            raise StopIteration
        self._remaining -= 1
        return next(self._iterators[0])

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads and worker processes."""
        self._finalizer()


@dataclass(frozen=True)
class BatchChunks:
    """Random access to chunks of a few rows, the units of work of threads and workers. See `batches`."""

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
    def per_batch(self) -> int:
        """Number of chunks per batch."""
        return -(-len(self.rows) // _CHUNK)

    def __len__(self) -> int:
        # More than are ever taken: grain leaks shared memory when it reaches the end by itself.
        return (self.steps - self.first + 10**6) * self.per_batch

    def __getitem__(self, number: int) -> HostBatch:
        step, chunk = self.first + number // self.per_batch, number % self.per_batch
        rows = self.rows[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        indices = batch_indices(self.seed, step, len(self.source), self.batch_size)[rows]
        image = np.empty((len(rows), self.crops, self.size, self.size, 3), np.uint8)
        label = np.empty(len(rows), np.int32)
        unreadable: list[UnreadableImage] = []
        for position, (row, i) in enumerate(zip(rows.tolist(), indices.tolist(), strict=True)):
            bits = cropping.random_bits(self.seed, step, row, self.crops)
            fill = partial(
                cropping.fill_crops, bits=bits, out=image[position], area=self.area, aspect=self.aspect
            )
            if self.replace:
                _, label[position], replaced = read_or_replace(self.source, i, fill)
                unreadable += replaced
            else:
                _, label[position] = read_image(self.source, i, fill)
        return HostBatch(image, label, tuple(unreadable))


def _init_worker(worker: int, workers: int) -> None:
    # The main process handles signals; it needs the images to finish its step.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent process does: a killed process cannot stop its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _close(iterators: list[Any]) -> None:
    while iterators:
        iterators.pop().close()


def _concatenate(chunks: list[HostBatch]) -> HostBatch:
    image, label = (np.concatenate([chunk[field] for chunk in chunks]) for field in (0, 1))
    return HostBatch(image, label, tuple(bad for chunk in chunks for bad in chunk.unreadable))
