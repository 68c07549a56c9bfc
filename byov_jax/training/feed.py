"""Batches on the devices, in an order that depends on (seed, step): from memory, or as they are decoded."""

from collections.abc import Callable, Generator, Sequence

import numpy as np

from byov_jax.data.loading import pipeline
from byov_jax.data.loading.order import batch_indices
from byov_jax.data.records import Bad, Source
from byov_jax.distributed.runner import Runner
from byov_jax.images.views import View
from byov_jax.methods.objectives import Batch

FEW_CORES = 4
"""On so many, threads of one process are faster than several processes, each with threads of its own."""


def from_memory(
    runner: Runner, data: Batch, *, seed: int, batch_size: int, first: int, steps: int
) -> Generator[Batch]:
    """The batches of steps `first` to `steps`, from images that are all in memory."""
    pick = runner.keep(data)
    for step in range(first, steps):
        yield pick(batch_indices(seed, step, data.image.shape[0], batch_size).astype(np.int32))


def from_stream(
    runner: Runner,
    source: Source,
    view: View,
    *,
    crops: int,
    labelled: bool,
    seed: int,
    batch_size: int,
    first: int,
    steps: int,
    workers: int = -1,
    on_error: str = "raise",
    report: Callable[[Sequence[Bad]], None] = lambda bad: None,
) -> Generator[Batch]:
    """The batches of steps `first` to `steps`, as they are decoded and cropped by `workers` processes.

    Each process of a run reads only what its own devices are going to see.

    Args:
      runner: the method on its devices.
      source: the images.
      view: says how they are cropped; the rest of it happens on the device.
      crops: of each image, one for every view of it.
      labelled: whether the source has labels.
      seed: decides the order of the images and their crops.
      batch_size: of the global batch.
      first: the first step.
      steps: the step before which to end.
      workers: processes that decode; 0 for threads of this process alone, -1 for what suits the cores.
      on_error: "raise" or "replace" an image that cannot be read, as in `stream.batches`.
      report: called with the images that were replaced in a batch, if any were.
    """
    if view.size is None:
        raise ValueError("config.views.size must be the side of the crops")
    with pipeline.batches(
        source,
        seed=seed,
        batch_size=batch_size,
        rows=runner.rows(),
        first=first,
        steps=steps,
        size=view.size,
        crops=crops,
        area=view.area,
        aspect=view.aspect,
        workers=default_workers(pipeline.cores()) if workers < 0 else workers,
        on_error=on_error,
    ) as batches:
        for part in batches:
            if part.bad:
                report(part.bad)
            yield runner.put(Batch(part.image, part.label if labelled else None))


def default_workers(cores: int) -> int:
    """How many processes shall decode on so many cores, 0 for threads alone."""
    return 0 if cores <= FEW_CORES else cores // pipeline.THREADS
