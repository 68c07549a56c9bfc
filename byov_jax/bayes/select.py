"""Select the Bayesian parameters: by preset, regular expression, callable, or a tree of booleans."""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from byov_jax.bayes import roles
from byov_jax.bayes.paths import is_float, path_of
from byov_jax.bayes.roles import Roles
from byov_jax.role import Role

Where = str | Callable[[str, Any], bool] | Any
"""A preset, a regular expression on the path, `callable(path, leaf)`, or a tree of bools."""

PRESETS: dict[str, Callable[[Role], bool]] = {
    "all": lambda role: True,
    "no_conv": lambda role: role.owner != "convolution",
    "linear_only": lambda role: role.owner == "linear",
}


def select(params, where: Where, known: Roles | None = None):
    """Return a tree of bools like `params`, True where a leaf is Bayesian.

    Only floating-point arrays are selected. Raises ValueError if `where` matches none of them.

    Args:
      params: any pytree of parameters.
      where: `"all"`; `"no_conv"`, all but convolutions and patch embeddings; `"linear_only"`, kernels and
        biases of linear layers; a regular expression, searched in the path; `callable(path, leaf)`; or a tree
        of bools.
      known: the roles of the parameters, from `networks.roles`; read off the tree if None.
    """
    if not (isinstance(where, str) or callable(where)):
        return _from_tree(params, where)
    matches = _predicate(params, where, known)
    selected = jax.tree_util.tree_map_with_path(
        lambda keys, leaf: is_float(leaf) and bool(matches(path_of(keys), leaf)), params
    )
    if not any(jax.tree.leaves(selected)):
        paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(params)]
        examples = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
        raise ValueError(
            f"where={where!r} matches none of the {len(paths)} parameters: {examples}. "
            f"Use one of {sorted(PRESETS)}, a regular expression on these paths, or callable(path, leaf)."
        )
    return selected


def _predicate(params, where: Where, known: Roles | None) -> Callable[[str, Any], bool]:
    if callable(where):
        return where
    if where in PRESETS:
        found, preset = roles.infer(params) | dict(known or {}), PRESETS[where]
        return lambda path, leaf: preset(found[path])
    try:
        pattern = re.compile(where)
    except re.error as error:
        raise ValueError(
            f"where={where!r} is neither one of {sorted(PRESETS)} nor a regular expression: {error}"
        ) from None
    return lambda path, leaf: pattern.search(path) is not None


def _from_tree(params, where):
    """Check a tree of bools."""
    flags = jax.tree.leaves(where)
    structure: Any = jax.tree.structure(where)
    if structure != jax.tree.structure(params):
        raise ValueError("where is a tree, but not with the structure of the parameters")
    if not all(isinstance(flag, bool | np.bool_) for flag in flags):
        raise ValueError("where is a tree, but not of bools: each leaf must be True or False")
    if not any(flags):
        raise ValueError("where selects nothing: all of its leaves are False")
    return jax.tree.map(lambda flag, leaf: bool(flag) and is_float(leaf), where, params)
