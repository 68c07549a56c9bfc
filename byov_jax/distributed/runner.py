"""Runner: base class of the sharded and the pmap mode, and the batch rows that each process feeds."""

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from byov_jax.methods import Method
from byov_jax.methods.objectives import Batch
from byov_jax.methods.state import State

AXIS = "data"
"""The name of the mesh axis, and of the pmap axis."""

MODES = ("auto", "plain", "sharded", "pmap")

Placed = Any
"""A state on the devices, as `step` takes it: a `State`, with a leading axis of local devices under pmap."""


class Runner(abc.ABC):
    """A method compiled for a mesh of devices; nothing is allocated before `init` or `put_state`.

    Attributes:
      mesh: the devices, along one axis.
      replicated: sharding of an array that every device has a copy of.
      batch_sharding: sharding of a global batch, by row.
      step: `(placed, batch, key) -> (placed, Info)`, compiled once; the state is donated.
    """

    step: Any

    def __init__(self, mesh: Mesh, batch: Batch, prng: str, method: Method) -> None:
        self.mesh, self.method = mesh, method
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.batch_sharding = NamedSharding(mesh, PartitionSpec(AXIS))
        self._batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
        self._key = jax.eval_shape(lambda: jax.random.key(0, impl=prng))
        self._state = jax.eval_shape(self._init_state, self._key)

    def _init_state(self, key: Array) -> State:
        example = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), self._batch)
        return self.method.init(key, example)

    def local_rows(self) -> np.ndarray:
        """Return the indices of the rows of a global batch that this process feeds."""
        return local_rows(self.mesh, self._batch.image.shape[0])

    @abc.abstractmethod
    def init(self, key: Array) -> Placed:
        """Return the state before the first step."""

    @abc.abstractmethod
    def abstract_state(self) -> State:
        """Return the state's shapes, dtypes and shardings, for `checkpointer.restore`."""

    @abc.abstractmethod
    def abstract_inputs(self) -> tuple[Any, Batch, Any]:
        """Return shapes and shardings of the inputs of `step`, to compile it without allocating anything."""

    @abc.abstractmethod
    def put_state(self, state: State) -> Placed:
        """Put a state laid out as `abstract_state` on the devices."""

    @abc.abstractmethod
    def get_state(self, placed: Placed) -> State:
        """Invert `put_state`; the result may share buffers that the next step donates."""

    @abc.abstractmethod
    def put_batch(self, part: Batch) -> Batch:
        """Put the `local_rows` of this process on its devices, and return the global batch."""

    @abc.abstractmethod
    def put_dataset(self, data: Batch) -> Callable[[np.ndarray], Batch]:
        """Hold a dataset in memory, and return a function `indices [batch] -> batch` on the devices."""


def local_rows(mesh: Mesh, size: int) -> np.ndarray:
    """Return the indices of those of `size` rows, divided among all devices, that this process holds."""
    slices = NamedSharding(mesh, PartitionSpec(AXIS)).addressable_devices_indices_map((size,))
    return np.concatenate([np.arange(size)[rows] for rows in slices.values()])


def abstract(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array, with a sharding."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
