"""Networks of Equinox as linen modules; Equinox is imported where one is used."""

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from byov_jax.networks import adapter
from byov_jax.networks.adapter import Kind, Path
from byov_jax.role import Role

Make = Callable[[Array], Any]
Leaves = dict[Path, Any]


def from_equinox(make: Make, *, channels_first: bool = True, axis_name: str = "batch") -> "FromEquinox":
    """Return the Equinox network that `make(key)` builds as a linen module over a batch.

    >>> encoder = from_equinox(lambda key: MyNet(width=64, key=key))

    Floating-point arrays are in the collection "params" under the names of the attributes
    (`layers/0/weight`), other arrays in "constants". A network with state is built together with it by
    `eqx.nn.make_with_state(MyNet)(key=key)`; floating-point state is in "batch_stats", other state in
    "state". Evaluation uses `eqx.nn.inference_mode`; in training a network that accepts `key` gets one for
    each example, from the rng stream "dropout". Networks are equal if their `make` is.

    Args:
      make: builds the network.
      channels_first: transpose each image to [channels, height, width].
      axis_name: name of the batch axis, as given to `eqx.nn.BatchNorm`.
    """
    return FromEquinox(make, channels_first, axis_name)


class FromEquinox(nn.Module):
    """An Equinox network as a linen module: see `from_equinox`."""

    make: Make
    channels_first: bool = True
    axis_name: str = "batch"

    def __call__(self, x: Array, *, train: bool = False) -> Any:
        """Return the network's output for each example; `train` updates its state."""
        import equinox as eqx

        initializing = self.is_initializing()
        if initializing:
            self._write(_build(self.make, self.make_rng("params")))
        network, state = self._read()
        if not train:
            network = eqx.nn.inference_mode(network)
        takes_key = "key" in inspect.signature(network).parameters
        dropout = takes_key and train and self.has_rng("dropout")
        keys = jax.random.split(self.make_rng("dropout"), len(x)) if dropout else None

        def apply(x: Array, key: Array | None) -> Any:
            arguments = {"key": key} if takes_key else {}
            return (network(x, **arguments), None) if state is None else network(x, state, **arguments)

        if self.channels_first and x.ndim == 4:
            x = x.transpose(0, 3, 1, 2)
        output, new_state = jax.vmap(apply, axis_name=self.axis_name, out_axes=(0, None))(x, keys)
        if train and not initializing:
            self._write((None, new_state))
        return output

    @nn.nowrap
    def parameter_roles(self) -> dict[str, Role]:
        """Return the role of every parameter by its path."""
        built = _structure(self.make)
        return adapter.roles_of(built[0], _by_collection(built).get("params", {}), _kinds())

    def _write(self, built: Any) -> None:
        """Store the arrays that belong to mutable collections."""
        for collection, leaves in _by_collection(built).items():
            if self.is_mutable_collection(collection):
                adapter.write(self, collection, leaves)

    def _read(self) -> Any:
        """Return network and state with the variables of this module."""
        built = _structure(self.make)
        collections = _by_collection(built)
        values = {name: adapter.read(self, name, leaves) for name, leaves in collections.items()}
        return jax.tree_util.tree_map_with_path(
            lambda keys, leaf: values[_collection(keys, leaf)][_path(keys)] if _is_array(leaf) else leaf,
            built,
        )


def _build(make: Make, key: Array) -> tuple[Any, Any]:
    """Return network and state, None if it has none."""
    import equinox as eqx

    built = make(key)
    network, state = built if isinstance(built, tuple) else (built, None)
    leaves = jax.tree.leaves(network, is_leaf=lambda node: isinstance(node, eqx.nn.StateIndex))
    if state is None and any(isinstance(leaf, eqx.nn.StateIndex) for leaf in leaves):
        raise ValueError(
            "the network has state: make it with eqx.nn.make_with_state, and return both network and state"
        )
    return network, state


@functools.lru_cache(maxsize=64)
def _structure(make: Make) -> tuple[Any, Any]:
    """Return network and state with shapes for arrays."""
    import equinox as eqx

    return eqx.filter_eval_shape(lambda key: _build(make, key), jax.random.key(0))


def _by_collection(built: Any) -> dict[str, Leaves]:
    """Return the arrays of each linen collection in a pair of network and state."""
    collections: dict[str, Leaves] = defaultdict(dict)
    for keys, leaf in jax.tree_util.tree_leaves_with_path(built):
        if _is_array(leaf):
            collections[_collection(keys, leaf)][_path(keys)] = leaf
    return collections


def _collection(keys: tuple[Any, ...], leaf: Any) -> str:
    floating, in_state = jnp.issubdtype(leaf.dtype, jnp.inexact), keys[0].idx == 1
    if in_state:
        return "batch_stats" if floating else "state"
    return "params" if floating else "constants"


def _path(keys: tuple[Any, ...]) -> Path:
    """Return the path within the network, or within the state."""
    names: Any = (getattr(key, "name", getattr(key, "idx", getattr(key, "key", None))) for key in keys[1:])
    return tuple(names)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def _kinds() -> tuple[Kind, ...]:
    """Return the layers of Equinox."""
    from equinox import nn as eqx_nn

    return (
        Kind("convolution", (eqx_nn.Conv, eqx_nn.ConvTranspose), lambda layer: layer.num_spatial_dims + 2),
        Kind("linear", (eqx_nn.Linear,), lambda layer: 2),
        Kind("norm", (eqx_nn.LayerNorm, eqx_nn.RMSNorm), lambda layer: len(layer.shape)),
        Kind("norm", (eqx_nn.BatchNorm, eqx_nn.GroupNorm), lambda layer: 1),
        Kind("embedding", (eqx_nn.Embedding,), lambda layer: 2),
    )
