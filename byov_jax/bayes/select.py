"""Which parameters are Bayesian: presets, regular expressions and callables over parameter paths."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Where = str | Callable[[str, Any], bool]
"""`"all"`, `"no_conv"`, `"linear_only"`, a regular expression on the path, or `callable(path, leaf)`."""

# Flax names modules Conv_0 or LayerNorm_0, NNX and Equinox users say conv1, patch_embed, norm or bn1.
_CONVOLUTION = re.compile(r"(^|/)(conv|patch)[^/]*/", re.IGNORECASE)
_NORM = re.compile(r"(^|/)([^/]*norm[^/]*|[bl]n_?\d*)/", re.IGNORECASE)

# Below a scan's `blocks` parameters have a depth axis; below a list of that name, `blocks/0`, they do not.
_STACK = re.compile(r"(^|/)blocks/(?!\d+/)")

PRESETS: dict[str, Callable[[str], bool]] = {
    "all": lambda path: True,
    "no_conv": lambda path: not _CONVOLUTION.search(path),
    "linear_only": lambda path: not (_CONVOLUTION.search(path) or _NORM.search(path)),
}


def path_of(keys: tuple) -> str:
    """JAX key path -> `"encoder/blocks_0/mlp/up/kernel"`, the same whatever container holds the leaf."""
    if len(keys) > 1 and keys[-1] == jax.tree_util.GetAttrKey("value"):
        keys = keys[:-1]  # NNX wraps each array in a Param whose only child is called value
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def select(tree, where: Where):
    """Tree of bools like `tree`: True where a leaf is to have a posterior.

    Only floating-point arrays can have one; everything else is left out, whatever `where` says.
    A selection that matches nothing is an error: it would train a point estimate under a Bayesian name.
    """
    matches = _predicate(where)
    chosen = jax.tree_util.tree_map_with_path(
        lambda keys, leaf: is_float(leaf) and bool(matches(path_of(keys), leaf)), tree
    )
    if not any(jax.tree.leaves(chosen)):
        paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]
        raise ValueError(
            f"where={where!r} matches none of the {len(paths)} parameters: {_abridged(paths)}. "
            f"Use one of {sorted(PRESETS)}, a regular expression on these paths, or callable(path, leaf)."
        )
    return chosen


def is_float(leaf) -> bool:
    """True for a floating-point array (or its abstract shape)."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def is_kernel(path: str) -> bool:
    """True for the weight matrix of a linear or convolutional layer, by the name its library gives it."""
    return path.rsplit("/", 1)[-1] in ("kernel", "weight") and not _NORM.search(path)


def is_stacked(path: str) -> bool:
    """True if a scan over layers has stacked this parameter, depth first."""
    return _STACK.search(path) is not None


def path_of_layer(path: str, depth: int) -> str:
    """The path of one layer of a stacked parameter: `encoder/blocks/3/mlp/up/kernel`."""
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


def _abridged(paths: list[str], most: int = 6) -> str:
    return ", ".join(paths[:most]) + (", ..." if len(paths) > most else "")
