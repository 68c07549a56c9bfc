"""Base of the adapters of other libraries: linen variables by path, and the roles of parameters."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array

from byov_jax.networks.parameter_roles import kind_of
from byov_jax.role import Role

Path = tuple[str | int, ...]


class Kind(NamedTuple):
    """Layers of one kind: the `owner` of a `Role`, their types, and the rank of a layer's weights."""

    owner: str
    types: tuple[type, ...]
    rank: Callable[[Any], int]


def write(module: nn.Module, collection: str, leaves: Mapping[Path, Array]) -> None:
    """Put arrays into a linen collection, as nested dicts."""
    nested = unflatten_dict({tuple(map(str, path)): leaf for path, leaf in leaves.items()})
    for name, value in nested.items():
        module.put_variable(collection, name, value)


def read(module: nn.Module, collection: str, paths: Iterable[Path]) -> dict[Path, Array]:
    """Return the arrays of a linen collection at these paths."""
    found = flatten_dict(module.variables.get(collection, {}))
    leaves = {}
    for path in paths:
        key = tuple(map(str, path))
        if key not in found:
            raise ValueError(f"the variables have no {'/'.join((collection, *module.path, *key))}")
        leaves[path] = found[key]
    return leaves


def roles_of(network: Any, params: Mapping[Path, Any], kinds: Iterable[Kind]) -> dict[str, Role]:
    """Return the role of every parameter from the innermost layer of a known kind that holds it.

    A layer is stacked if its weights have more axes than those of a single layer.
    """
    ranks: dict[Path, int] = {}
    for path, leaf in params.items():
        for depth in range(len(path)):
            ranks[path[:depth]] = max(leaf.ndim, ranks.get(path[:depth], 0))
    result = {}
    for path in params:
        role, node = Role("other"), network
        for depth, name in enumerate(path):
            kind = next((kind for kind in kinds if isinstance(node, kind.types)), None)
            if owner := kind_of(node) or (kind and kind.owner):
                role = Role(owner)
            if kind:
                role = role._replace(stacked=ranks[path[:depth]] > kind.rank(node))
            node = _child(node, name)
        result["/".join(map(str, path))] = role
    return result


def _child(node: Any, name: str | int) -> Any:
    by_attribute = isinstance(name, str) and not isinstance(node, Mapping) and hasattr(node, name)
    return getattr(node, str(name)) if by_attribute else node[name]
