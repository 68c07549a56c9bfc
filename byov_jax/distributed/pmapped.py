"""PmapRunner: `pmap`, with a copy of the state on every device."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from byov_jax.distributed.runner import AXIS, Placed, Runner, abstract
from byov_jax.methods import Method
from byov_jax.methods.layout import Layout
from byov_jax.methods.objectives import Batch
from byov_jax.methods.state import State


class PmapRunner(Runner):
    """The state is replicated, with a leading axis of local devices."""

    def __init__(self, mesh: Mesh, batch: Batch, prng: str, method: Method) -> None:
        super().__init__(mesh, batch, prng, method)
        self.step = jax.pmap(
            method.step,
            axis_name=AXIS,
            in_axes=(0, 0, None),
            out_axes=(0, None),
            donate_argnums=0,
            devices=list(mesh.devices.flat),
        )

    def init(self, key: Array) -> Placed:
        return self.put_state(jax.jit(self._init_state, out_shardings=self.replicated)(key))

    def abstract_state(self) -> State:
        return jax.tree.map(lambda x: abstract(x, self.replicated), self._state)

    def abstract_inputs(self) -> tuple[Any, Batch, Any]:
        count = self.mesh.size
        state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), self._state)
        batch = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((count, x.shape[0] // count, *x.shape[1:]), x.dtype), self._batch
        )
        return state, batch, self._key

    def put_state(self, state: State) -> Placed:
        count = len(self.mesh.local_devices)
        return jax.tree.map(lambda x: np.broadcast_to(np.asarray(x), (count, *x.shape)), state)

    def get_state(self, placed: Placed) -> State:
        def first(x: Any) -> Array:
            copy = np.asarray(x[0] if isinstance(x, np.ndarray) else x.addressable_shards[0].data[0])
            return jax.make_array_from_callback(copy.shape, self.replicated, lambda _: copy)

        return jax.tree.map(first, placed)

    def put_batch(self, part: Batch) -> Batch:
        count = len(self.mesh.local_devices)
        return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), part)

    def put_dataset(self, data: Batch) -> Callable[[np.ndarray], Batch]:
        rows = self.local_rows()
        return lambda indices: self.put_batch(jax.tree.map(lambda x: np.asarray(x)[indices[rows]], data))


def layout(axis_name: str, *, one_draw: bool = False) -> Layout:
    """Return the layout of a state replicated over a pmap axis."""
    return Layout(axis_name=axis_name, one_draw=one_draw)
