"""Feed batches to the devices, from memory or from a stream, in an order that depends on (seed, step)."""

from collections.abc import Callable, Generator, Sequence

import numpy as np

from byov_jax.data.dataset import Source, UnreadableImage
from byov_jax.data.loading import pipeline
from byov_jax.data.loading.order import batch_indices
from byov_jax.distributed.runner import Runner
from byov_jax.images.views import View
from byov_jax.methods.objectives import Batch

FEW_CORES = 4
"""On at most this many cores, the threads of one process decode faster than several processes."""


def from_memory(
    runner: Runner, data: Batch, *, seed: int, batch_size: int, first: int, steps: int
) -> Generator[Batch]:
    """Yield the batches of steps `first` to `steps`, from images in memory."""
    pick = runner.put_dataset(data)
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
    report: Callable[[Sequence[UnreadableImage]], None] = lambda bad: None,
) -> Generator[Batch]:
    """Yield the batches of steps `first` to `steps`, decoded and cropped on the host ahead of time.

    Each process of a run reads only the images of its own devices.

    Args:
      runner: the method on its devices.
      source: the images.
      view: how images are cropped; its other transforms run on the device.
      crops: crops per image, one for each view.
      labelled: whether the source has labels.
      seed: decides the order of the images and their crops.
      batch_size: size of the global batch.
      first: the first step, from 0.
      steps: the step at which to end.
      workers: processes that decode; 0 for threads alone, -1 to choose by cores.
      on_error: "raise" or "replace" an unreadable image, as in `pipeline.batches`.
      report: called with the images of a batch that were replaced, if any.
    """
    if view.size is None:
        raise ValueError("config.views.size must be the side of the crops")
    with pipeline.batches(
        source,
        seed=seed,
        batch_size=batch_size,
        rows=runner.local_rows(),
        first=first,
        steps=steps,
        size=view.size,
        crops=crops,
        area=view.area,
        aspect=view.aspect,
        workers=default_workers(pipeline.usable_cores()) if workers < 0 else workers,
        on_error=on_error,
    ) as batches:
        for part in batches:
            if part.unreadable:
                report(part.unreadable)
            yield runner.put_batch(Batch(part.image, part.label if labelled else None))


def default_workers(cores: int) -> int:
    """Return the number of decoding processes for a number of cores, 0 for threads alone."""
    return 0 if cores <= FEW_CORES else cores // pipeline.THREADS_PER_WORKER
