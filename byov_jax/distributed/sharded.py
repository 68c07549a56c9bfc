"""ShardedRunner: `jit` over a mesh, with the state divided among the devices (ZeRO)."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from byov_jax.distributed.runner import Runner, abstract
from byov_jax.methods import Method
from byov_jax.methods.layout import Layout
from byov_jax.methods.objectives import Batch
from byov_jax.methods.state import State

MIN_SHARDED_SIZE = 2**12
"""Arrays with fewer elements are replicated: communication would cost more than the memory is worth."""


class ShardedRunner(Runner):
    """Every array of the state is divided among the devices, if it is large enough."""

    def __init__(self, mesh: Mesh, batch: Batch, prng: str, method: Method, min_size: int) -> None:
        super().__init__(mesh, batch, prng, method)
        self._shardings = jax.tree.map(lambda x: leaf_sharding(mesh, x.shape, min_size=min_size), self._state)
        self.step = jax.jit(
            method.step,
            donate_argnums=0,
            in_shardings=(self._shardings, self.batch_sharding, self.replicated),
            out_shardings=(self._shardings, self.replicated),
        )

    def init(self, key: Array) -> State:
        return jax.jit(self._init_state, in_shardings=self.replicated, out_shardings=self._shardings)(key)

    def abstract_state(self) -> State:
        return jax.tree.map(abstract, self._state, self._shardings)

    def abstract_inputs(self) -> tuple[Any, Batch, Any]:
        batch = jax.tree.map(lambda x: abstract(x, self.batch_sharding), self._batch)
        return self.abstract_state(), batch, abstract(self._key, self.replicated)

    def put_state(self, state: State) -> State:
        return jax.device_put(state, self._shardings)

    def get_state(self, placed: State) -> State:
        return placed

    def put_batch(self, part: Batch) -> Batch:
        return jax.make_array_from_process_local_data(self.batch_sharding, part)

    def put_dataset(self, data: Batch) -> Callable[[np.ndarray], Batch]:
        on_device = jax.device_put(data, self.replicated)
        take = jax.jit(
            lambda data, rows: jax.tree.map(lambda x: x[rows], data), out_shardings=self.batch_sharding
        )
        return lambda indices: take(on_device, indices)


def layout(mesh: Mesh, *, min_size: int = MIN_SHARDED_SIZE) -> Layout:
    """Return the ZeRO layout of a mesh with one axis (Rajbhandari et al., 2020).

    Every device stores, updates and draws the noise of its own shard of the weights. The drawn weights are
    gathered before use; their gradients are reduce-scattered.
    """

    def shard(tree: Any) -> Any:
        shardings = jax.tree.map(lambda x: leaf_sharding(mesh, x.shape, min_size=min_size), tree)
        return jax.tree.map(jax.lax.with_sharding_constraint, tree, shardings)

    @jax.custom_vjp
    def gather(tree: Any) -> Any:
        return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))

    gather.defvjp(lambda tree: (gather(tree), None), lambda _, gradient: (shard(gradient),))
    return Layout(shard, gather)


def leaf_sharding(mesh: Mesh, shape: tuple[int, ...], *, min_size: int = MIN_SHARDED_SIZE) -> NamedSharding:
    """Return the sharding of a state array: along its longest axis that the mesh size divides, if any.

    It depends on the shape alone, so means, log-variances, moments and teacher are sharded alike.
    """
    axes = [axis for axis, side in enumerate(shape) if side % mesh.size == 0]
    if not axes or math.prod(shape) < max(min_size, 1):
        return NamedSharding(mesh, PartitionSpec())
    longest = max(axes, key=lambda axis: shape[axis])
    spec = (mesh.axis_names[0] if axis == longest else None for axis in range(len(shape)))
    return NamedSharding(mesh, PartitionSpec(*spec))
