"""The plain loop: data on the device, one compiled step, batches in an order that depends on (seed, step)."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from byov_jax.data.order import batch_indices
from byov_jax.train.methods import Method
from byov_jax.train.objectives import Batch
from byov_jax.train.step import Info, State


class Progress(NamedTuple):
    """Where a run is: the state after `step` optimizer steps, and what the last of them showed."""

    step: int
    state: State
    info: Info


def run(
    method: Method, data: Batch, *, seed: int, steps: int, batch_size: int, report_every: int = 1
) -> Iterator[Progress]:
    """Trains for `steps` steps on a data set that fits on the device; yields at each report and at the end.

    Args:
      method: what to train.
      data: all images, and labels if any.
      seed: decides initialisation, data order, views and weight draws.
      steps: optimizer steps.
      batch_size: images per step.
      report_every: steps between two reports; between them nothing waits for the device.

    Yields:
      `Progress`. Its state is donated to the next step: read what you need before going on.
    """
    init_key, step_key = jax.random.split(jax.random.key(seed))
    size = data.image.shape[0]
    data = jax.device_put(data)
    state = method.init(init_key, jax.tree.map(lambda x: x[:batch_size], data))

    @partial(jax.jit, donate_argnums=0)
    def advance(state: State, data: Batch, indices) -> tuple[State, Info]:
        return method.step(state, jax.tree.map(lambda x: x[indices], data), step_key)

    for step in range(1, steps + 1):
        indices = batch_indices(seed, step - 1, size, batch_size).astype(np.int32)
        state, info = advance(state, data, indices)
        if step % report_every == 0 or step == steps:
            yield Progress(step, state, info)
