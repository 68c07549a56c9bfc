"""Networks of Flax NNX as linen modules."""

import functools
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from byov_jax.networks import adapter
from byov_jax.networks.adapter import Kind, Path
from byov_jax.networks.call import call
from byov_jax.role import Role

Make = Callable[[nnx.Rngs], nnx.Module]
Leaves = dict[Path, Any]

KINDS = (
    Kind("convolution", (nnx.Conv, nnx.ConvTranspose), lambda layer: len(layer.kernel_size) + 2),
    Kind("linear", (nnx.Linear,), lambda layer: 2),
    Kind("linear", (nnx.LinearGeneral,), lambda layer: len(layer.in_features) + len(layer.out_features)),
    Kind("linear", (nnx.Einsum,), lambda layer: len(layer.kernel_shape)),
    Kind(
        "norm", (nnx.BatchNorm, nnx.GroupNorm, nnx.InstanceNorm, nnx.LayerNorm, nnx.RMSNorm), lambda layer: 1
    ),
    Kind("embedding", (nnx.Embed,), lambda layer: 2),
)
"""The layers of Flax NNX."""


def from_nnx(make: Make) -> "FromNNX":
    """Return the NNX network that `make(rngs)` builds as a linen module.

    >>> encoder = from_nnx(lambda rngs: MyNet(width=64, rngs=rngs))

    Each `nnx.Param` is in the collection "params" under the names of the attributes (`blocks/0/conv/kernel`),
    each `nnx.BatchStat` in "batch_stats", variables of any other type in a collection named after the type in
    snake case, and plain arrays in "arrays". `train` chooses between `module.train()` and `module.eval()`.
    Dropout and other random layers draw from the rng stream "dropout". Networks are equal if their `make` is.
    """
    return FromNNX(make)


class FromNNX(nn.Module):
    """An NNX network as a linen module: see `from_nnx`."""

    make: Make

    def __call__(self, x: Array, *, train: bool = False) -> Any:
        """Return the network's output; `train` updates its batch statistics."""
        initializing = self.is_initializing()
        if initializing:
            built = _build(self.make, nnx.Rngs(self.make_rng("params")))
            self._write(_leaves(nnx.state(built)))
        network = self._read(train)
        if train:
            network.train()
        else:
            network.eval()
        output = call(network, x, train)
        if not initializing:
            self._write(_leaves(nnx.state(network)))
        return output

    @nn.nowrap
    def parameter_roles(self) -> dict[str, Role]:
        """Return the role of every parameter by its path."""
        graph, structure = _structure(self.make)
        params = _by_collection(structure).get("params", {})
        return adapter.roles_of(_merge(graph, structure), params, KINDS)

    def _write(self, leaves: Leaves) -> None:
        """Store the leaves that belong to mutable collections."""
        for collection, members in _by_collection(leaves).items():
            if self.is_mutable_collection(collection):
                values = {path: _value(leaf) for path, leaf in members.items()}
                adapter.write(self, collection, values)

    def _read(self, train: bool) -> nnx.Module:
        """Return the network with the variables of this module and new random streams."""
        graph, structure = _structure(self.make)
        leaves = structure | self._random_state(structure, train)
        for collection, members in _by_collection(structure).items():
            for path, value in adapter.read(self, collection, members).items():
                leaf = members[path]
                leaves[path] = leaf.replace(value) if isinstance(leaf, nnx.Variable) else value
        return _merge(graph, leaves)

    def _random_state(self, structure: Leaves, train: bool) -> Leaves:
        """Return a key for each random stream of the network, and counts of zero."""
        leaves = {path: leaf for path, leaf in structure.items() if isinstance(leaf, nnx.RngState)}
        if not leaves:
            return {}
        if self.has_rng("dropout") or self.has_rng("params"):
            key = self.make_rng("dropout")
        elif train:
            raise ValueError('training this network needs rngs={"dropout": key}')
        else:
            key = jax.random.key(0)
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        keys = jax.random.split(key, len(leaves))
        return {
            path: leaf.replace(
                jax.random.split(key, leaf.shape)
                if isinstance(leaf, nnx.RngKey)
                else jnp.zeros(leaf.shape, leaf.dtype)
            )
            for key, (path, leaf) in zip(keys, leaves.items(), strict=True)
        }


def _build(make: Make, rngs: nnx.Rngs) -> nnx.Module:
    module = make(rngs)
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Module):
            for name, value in vars(node).items():
                if isinstance(value, jax.Array):  # Flax takes a traced array for a static attribute
                    setattr(node, name, nnx.data(value))
    return module


@functools.lru_cache(maxsize=64)
def _structure(make: Make) -> tuple[nnx.GraphDef, Leaves]:
    """Return the network's graph and its leaves with shapes for values."""
    graphs = []

    def build() -> Any:
        graph, state = nnx.split(_build(make, nnx.Rngs(0)))
        graphs.append(graph)
        return state

    state = jax.eval_shape(build)
    return graphs[0], _leaves(state)


def _leaves(state: Any) -> Leaves:
    flat: Any = nnx.to_flat_state(state)
    return dict(flat)


def _merge(graph: nnx.GraphDef, leaves: Any) -> nnx.Module:
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def _by_collection(leaves: Leaves) -> dict[str, Leaves]:
    """Return the leaves of each linen collection, without random state."""
    collections: dict[str, Leaves] = defaultdict(dict)
    for path, leaf in leaves.items():
        if not isinstance(leaf, nnx.RngState):
            collections[_collection(leaf)][path] = leaf
    return collections


def _collection(leaf: Any) -> str:
    if isinstance(leaf, nnx.Param):
        return "params"
    if isinstance(leaf, nnx.BatchStat):
        return "batch_stats"
    if isinstance(leaf, nnx.Variable):
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(leaf).__name__).lower()
    return "arrays"


def _value(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
