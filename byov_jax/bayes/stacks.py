"""Leaves of one shape as one array: elementwise work is compiled once per shape, not once per leaf."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array


def stack(tree: Any) -> dict[str, Array]:
    """Return the leaves of one shape and dtype stacked along a new first axis, by shape and dtype."""
    groups: dict[str, list[Array]] = {}
    for leaf in map(jnp.asarray, jax.tree.leaves(tree)):
        groups.setdefault(_kind(leaf), []).append(leaf)
    return {kind: jnp.stack(leaves) for kind, leaves in groups.items()}


def unstack(stacks: dict[str, Array], like: Any) -> Any:
    """Return the tree whose `stack` is `stacks`, of the structure and shapes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    rows = {kind: iter(array) for kind, array in stacks.items()}
    return jax.tree.unflatten(treedef, [next(rows[_kind(leaf)]) for leaf in leaves])


def elementwise(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimizer that gives each weight its own update, such as Adam, which sees leaves stacked."""

    def init(params: Any) -> Any:
        return optimizer.init(stack(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        stacked, state = optimizer.update(stack(updates), state, None if params is None else stack(params))
        return unstack(stacked, updates), state

    return optax.GradientTransformation(init, update)


def _kind(leaf: Array) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
