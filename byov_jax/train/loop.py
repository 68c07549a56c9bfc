"""The loop: data on the devices, one compiled step, batches in an order that depends on (seed, step)."""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from byov_jax.data.order import batch_indices
from byov_jax.train.methods import Method
from byov_jax.train.objectives import Batch
from byov_jax.train.step import Info, State

AHEAD = 2


class Progress(NamedTuple):
    """Where a run is: the state after `step` optimizer steps, and what the last of them showed."""

    step: int
    state: State
    info: Info


def initial(method: Method, data: Batch, seed: int) -> State:
    """The state before the first step; of the data only shapes and dtypes matter."""
    return method.init(_keys(seed)[0], jax.tree.map(lambda x: x[:1], data))


def run(
    method: Method,
    data: Batch,
    *,
    seed: int,
    steps: int,
    batch_size: int,
    state: State | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Iterator[Progress]:
    """Trains to step `steps` on a data set that fits on a device; yields after every step.

    The host runs at most `AHEAD` steps ahead of the devices: enough to keep them busy, and whoever stops the
    loop need not wait for a long queue.

    Args:
      method: what to train.
      data: all images, and labels if any.
      seed: decides initialisation, data order, views and weight draws.
      steps: optimizer steps.
      batch_size: images per step.
      state: where to go on; the `initial` one if None. It is donated.
      devices: among which each batch is divided, one of them if None.

    Yields:
      `Progress`. Its state is donated to the next step: read what you need before going on.
    """
    mesh = jax.make_mesh(
        (len(devices or (0,)),),
        ("data",),
        axis_types=(AxisType.Auto,),
        devices=list(devices or jax.devices()[:1]),
    )
    if batch_size % mesh.size:
        raise ValueError(f"a batch of {batch_size} images cannot be divided among {mesh.size} devices")
    everywhere, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    size = data.image.shape[0]
    data = jax.device_put(data, everywhere)
    state = jax.device_put(initial(method, data, seed) if state is None else state, everywhere)
    root = _keys(seed)[1]

    @partial(jax.jit, donate_argnums=0, out_shardings=everywhere)
    def advance(state: State, data: Batch, indices) -> tuple[State, Info]:
        return method.step(state, jax.tree.map(lambda x: x[indices], data), root)

    queue: deque[Info] = deque()
    for step in range(int(state.step), steps):
        indices = batch_indices(seed, step, size, batch_size).astype(np.int32)
        state, info = advance(state, data, jax.device_put(indices, divided))
        queue.append(info)
        if len(queue) > AHEAD:
            jax.block_until_ready(queue.popleft())
        yield Progress(step + 1, state, info)


def _keys(seed: int) -> tuple[jax.Array, jax.Array]:
    init_key, step_key = jax.random.split(jax.random.key(seed))
    return init_key, step_key
