"""Leaves of one shape as one array: sums over all leaves are compiled once per shape, not once per leaf."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def stack(tree: Any) -> dict[str, Array]:
    """Return the leaves of one shape and dtype stacked along a new first axis, by dtype and shape."""
    groups: dict[str, list[Array]] = {}
    for leaf in jax.tree.leaves(tree):
        groups.setdefault(f"{leaf.dtype}{list(leaf.shape)}", []).append(leaf)
    return {kind: jnp.stack(leaves) for kind, leaves in groups.items()}
