"""One method on many devices: the state divided among them (`sharded`), or a copy on each (`pmap`).

    runner = parallel.build(lambda layout: methods.byov(..., layout=layout), batch, mode="sharded")
    state = runner.start(key)
    state, info = runner.step(state, runner.put(part), key)      # part: the rows of this process

Both run the same step. `sharded` draws one set of weights per global batch, as the paper does, and each
device makes only its own part of the noise; batch statistics are those of the global batch. `pmap` draws
other weights on every device, unless `one_draw`, and averages gradients and batch statistics. The KL counts
once in both. With one device `sharded` is plain `jit`.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from byov_jax.distributed import layout as layouts
from byov_jax.methods import Method
from byov_jax.methods.layout import Layout
from byov_jax.methods.objectives import Batch
from byov_jax.methods.step import State

AXIS = "data"
"""The name of the mesh axis, and of the pmap axis."""

MODES = ("auto", "plain", "sharded", "pmap")

Placed = Any
"""A state as `step` takes it: a `State`, with a leading axis of local devices under pmap."""


class Runner(abc.ABC):
    """A method on its devices.

    Attributes:
      mesh: the devices, in one row.
      everywhere: a copy on each of them.
      by_row: divided by row of the global batch.
      step: `(placed, batch, key) -> (placed, Info)`, compiled once; the state is donated.
    """

    step: Any

    def __init__(self, mesh: Mesh, batch: Batch, prng: str, method: Method) -> None:
        """Nothing is allocated yet; see `build`."""
        self.mesh, self.method = mesh, method
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self.by_row = NamedSharding(mesh, PartitionSpec(AXIS))
        self._batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
        self._key = jax.eval_shape(lambda: jax.random.key(0, impl=prng))
        self._state = jax.eval_shape(self._init, self._key)

    def _init(self, key: Array) -> State:
        example = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), self._batch)
        return self.method.init(key, example)

    def rows(self) -> np.ndarray:
        """Which rows of a global batch this process feeds."""
        return local_rows(self.mesh, self._batch.image.shape[0])

    @abc.abstractmethod
    def start(self, key: Array) -> Placed:
        """The state before the first step."""

    @abc.abstractmethod
    def like(self) -> State:
        """The abstract state with its shardings, for `checkpoint.restore`."""

    @abc.abstractmethod
    def place(self, state: State) -> Placed:
        """A state in arrays laid out as `like`, ready for `step`."""

    @abc.abstractmethod
    def state(self, placed: Placed) -> State:
        """The inverse of `place`; the arrays may be those that the next step takes away."""

    @abc.abstractmethod
    def put(self, part: Batch) -> Batch:
        """The rows of this process -> the batch on the devices."""

    @abc.abstractmethod
    def keep(self, data: Batch) -> Callable[[np.ndarray], Batch]:
        """A whole data set, kept where batches come from fastest: indices [batch] -> that batch."""

    @abc.abstractmethod
    def abstract(self) -> tuple[Any, Batch, Any]:
        """Shapes and shardings of what `step` takes, to compile it without allocating anything."""


def build(
    method_of: Callable[[Layout], Method],
    batch: Batch,
    *,
    mode: str = "auto",
    devices: Sequence[jax.Device] | None = None,
    one_draw: bool = False,
    prng: str = "threefry2x32",
    smallest: int = layouts.MIN_SHARDED_SIZE,
) -> Runner:
    """Puts a method on devices.

    Args:
      method_of: the method for a layout, such as `lambda layout: methods.byov(..., layout=layout)`. For pmap
        its batch norms need `axis_name="data"`.
      batch: a global batch, of which only shapes and dtypes matter.
      mode: "sharded", "pmap", "plain" for the first device alone, "auto" for sharded on all devices.
      devices: all of all processes if None.
      one_draw: under pmap, the same weights on every device.
      prng: the implementation of the keys that `start` and `step` are going to be given.
      smallest: arrays of fewer elements are kept whole on every device.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
    found = list(devices or jax.devices())[: 1 if mode == "plain" else None]
    mesh = jax.make_mesh((len(found),), (AXIS,), axis_types=(AxisType.Auto,), devices=found)
    size = batch.image.shape[0]
    if size % mesh.size:
        raise ValueError(f"a batch of {size} images cannot be divided among {mesh.size} devices")
    if mode == "pmap":
        return PmapRunner(mesh, batch, prng, method_of(layouts.pmapped(AXIS, one_draw=one_draw)))
    layout = layouts.sharded(mesh, smallest=smallest) if mesh.size > 1 else Layout()
    return ShardedRunner(mesh, batch, prng, method_of(layout), smallest)


def local_rows(mesh: Mesh, size: int) -> np.ndarray:
    """Which of `size` rows, divided among the devices of all processes, lie on those of this process."""
    per_device = size // mesh.size
    here = [place for place, device in enumerate(mesh.devices.flat) if device in _local(mesh)]
    return (np.array(here)[:, None] * per_device + np.arange(per_device)[None]).ravel()


def put_rows(mesh: Mesh, part: np.ndarray) -> Array:
    """The global array of which every process gives its `local_rows`."""
    local = _local(mesh)
    pieces = [jax.device_put(*pair) for pair in zip(np.split(part, len(local)), local, strict=True)]
    shape = (len(part) // len(local) * mesh.size, *part.shape[1:])
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, PartitionSpec(AXIS)), pieces)


def _local(mesh: Mesh) -> list[jax.Device]:
    """The devices of this process, in the order of the mesh."""
    return [device for device in mesh.devices.flat if device.process_index == jax.process_index()]


class ShardedRunner(Runner):
    """`jit` over a mesh: every array of the state divided among the devices, if it is large enough."""

    def __init__(self, mesh: Mesh, batch: Batch, prng: str, method: Method, smallest: int) -> None:
        super().__init__(mesh, batch, prng, method)
        self._places = jax.tree.map(lambda x: layouts.sharding(mesh, x.shape, smallest=smallest), self._state)
        self.step = jax.jit(
            method.step,
            donate_argnums=0,
            in_shardings=(self._places, self.by_row, self.everywhere),
            out_shardings=(self._places, self.everywhere),
        )

    def start(self, key: Array) -> State:
        return jax.jit(self._init, in_shardings=self.everywhere, out_shardings=self._places)(key)

    def like(self) -> State:
        return jax.tree.map(_placed, self._state, self._places)

    def place(self, state: State) -> State:
        return jax.device_put(state, self._places)

    def state(self, placed: State) -> State:
        return placed

    def put(self, part: Batch) -> Batch:
        return jax.tree.map(lambda x: put_rows(self.mesh, x), part)

    def keep(self, data: Batch) -> Callable[[np.ndarray], Batch]:
        kept = jax.device_put(data, self.everywhere)
        pick = jax.jit(lambda data, rows: jax.tree.map(lambda x: x[rows], data), out_shardings=self.by_row)
        return lambda indices: pick(kept, indices)

    def abstract(self) -> tuple[Any, Batch, Any]:
        batch = jax.tree.map(lambda x: _placed(x, self.by_row), self._batch)
        return self.like(), batch, _placed(self._key, self.everywhere)


class PmapRunner(Runner):
    """`pmap`: a copy of the state on every device."""

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

    def start(self, key: Array) -> Placed:
        return self.place(jax.jit(self._init, out_shardings=self.everywhere)(key))

    def like(self) -> State:
        return jax.tree.map(lambda x: _placed(x, self.everywhere), self._state)

    def place(self, state: State) -> Placed:
        count = len(_local(self.mesh))
        return jax.tree.map(lambda x: np.broadcast_to(np.asarray(x), (count, *x.shape)), state)

    def state(self, placed: Placed) -> State:
        def first(x: Any) -> Array:
            copy = np.asarray(x[0] if isinstance(x, np.ndarray) else x.addressable_shards[0].data[0])
            return jax.make_array_from_callback(copy.shape, self.everywhere, lambda _: copy)

        return jax.tree.map(first, placed)

    def put(self, part: Batch) -> Batch:
        count = len(_local(self.mesh))
        return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), part)

    def keep(self, data: Batch) -> Callable[[np.ndarray], Batch]:
        rows = self.rows()
        return lambda indices: self.put(jax.tree.map(lambda x: np.asarray(x)[indices[rows]], data))

    def abstract(self) -> tuple[Any, Batch, Any]:
        count = self.mesh.size
        state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), self._state)
        batch = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((count, x.shape[0] // count, *x.shape[1:]), x.dtype), self._batch
        )
        return state, batch, self._key


def _placed(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
