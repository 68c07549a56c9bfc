"""The paths of the leaves of a parameter tree, the same for every kind of container."""

import jax
import jax.numpy as jnp


def path_of(keys: tuple) -> str:
    """Format a JAX key path as `"encoder/blocks_0/mlp/up/kernel"`, the same for every container type."""
    if len(keys) > 1 and keys[-1] == jax.tree_util.GetAttrKey("value"):
        keys = keys[:-1]  # NNX wraps each array in a Param with one child named value
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def is_float(leaf) -> bool:
    """Return whether a leaf is a floating-point array or `ShapeDtypeStruct`."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
