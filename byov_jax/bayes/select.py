"""Select the Bayesian parameters by preset, regular expression or callable over parameter paths."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Where = str | Callable[[str, Any], bool]
"""`"all"`, `"no_conv"`, `"linear_only"`, a regular expression on the path, or `callable(path, leaf)`."""

# Flax names modules Conv_0 or LayerNorm_0; NNX and Equinox users write conv1, patch_embed, norm or bn1.
_CONVOLUTION = re.compile(r"(^|/)(conv|patch)[^/]*/", re.IGNORECASE)
_NORM = re.compile(r"(^|/)([^/]*norm[^/]*|[bl]n_?\d*)/", re.IGNORECASE)

# Parameters under the `blocks` of a scan have a depth axis; those of a list `blocks/0` do not.
_STACK = re.compile(r"(^|/)blocks/(?!\d+/)")

PRESETS: dict[str, Callable[[str], bool]] = {
    "all": lambda path: True,
    "no_conv": lambda path: not _CONVOLUTION.search(path),
    "linear_only": lambda path: not (_CONVOLUTION.search(path) or _NORM.search(path)),
}


def path_of(keys: tuple) -> str:
    """Format a JAX key path as `"encoder/blocks_0/mlp/up/kernel"`, the same for every container type."""
    if len(keys) > 1 and keys[-1] == jax.tree_util.GetAttrKey("value"):
        keys = keys[:-1]  # NNX wraps each array in a Param with one child named value
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def select(tree, where: Where):
    """Return a tree of bools like `tree`, True where a leaf is Bayesian.

    Only floating-point arrays are selected. Raises ValueError if `where` matches none of them.
    """
    matches = _predicate(where)
    selected = jax.tree_util.tree_map_with_path(
        lambda keys, leaf: is_float(leaf) and bool(matches(path_of(keys), leaf)), tree
    )
    if not any(jax.tree.leaves(selected)):
        paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]
        examples = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
        raise ValueError(
            f"where={where!r} matches none of the {len(paths)} parameters: {examples}. "
            f"Use one of {sorted(PRESETS)}, a regular expression on these paths, or callable(path, leaf)."
        )
    return selected


def is_float(leaf) -> bool:
    """Return whether a leaf is a floating-point array or `ShapeDtypeStruct`."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def is_kernel(path: str) -> bool:
    """Return whether a path names the weights of a linear or convolutional layer."""
    return path.rsplit("/", 1)[-1] in ("kernel", "weight") and not _NORM.search(path)


def is_stacked(path: str) -> bool:
    """Return whether a path names a parameter stacked by a scan over layers, with depth as first axis."""
    return _STACK.search(path) is not None


def path_of_layer(path: str, depth: int) -> str:
    """Return the path of one layer of a stacked parameter: `encoder/blocks/3/mlp/up/kernel`."""
    return _STACK.sub(lambda stack: f"{stack.group()}{depth}/", path, count=1)


def _predicate(where: Where) -> Callable[[str, Any], bool]:
    if callable(where):
        return where
    if where in PRESETS:
        preset = PRESETS[where]
        return lambda path, leaf: preset(path)
    try:
        pattern = re.compile(where)
    except re.error as error:
        raise ValueError(
            f"where={where!r} is neither one of {sorted(PRESETS)} nor a regular expression: {error}"
        ) from None
    return lambda path, leaf: pattern.search(path) is not None
