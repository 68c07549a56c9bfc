"""Pruning without retraining: masks that keep weights by signal-to-noise ratio, by magnitude or at random.

A mask is a tree like the parameters: for every kernel that is pruned a bool array, True where a weight is
kept, and None for everything else.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from byov_jax.bayes import posterior
from byov_jax.bayes import roles as parameter_roles
from byov_jax.bayes.paths import is_float, path_of
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.roles import Roles, is_kernel, layer_paths
from byov_jax.evaluation import checks

FRACTIONS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05)
"""The fractions of weights that `sweep` keeps by default."""

Where = Callable[[str], bool] | None


def snr_mask(
    q: Posterior,
    keep: float | Array,
    *,
    scope: str = "layer",
    where: Where = None,
    roles: Roles | None = None,
) -> PyTree:
    """Keep the weights of highest `|mean| / sigma` (Graves, 2011; Blundell et al., 2015).

    A kernel without a posterior has no ratio and is not pruned. To compare with another criterion when there
    are such kernels, give both the same `where`.

    Args:
      q: the posterior.
      keep: the fraction to keep, in [0, 1]: of `n` weights exactly `floor(keep * n + 1/2)`. Of equal weights
        the earlier ones are kept. It may be an array, traced inside jit and vmap: then as many as there are
        `i` with `(i + 1/2) / n <= keep`, which is the same number up to the rounding of float32, and a traced
        fraction below 0 or NaN keeps nothing, one above 1 everything.
      scope: `"layer"` keeps this fraction of every layer, `"global"` of all layers together. A layer is one
        kernel; one that a scan stacks counts as one layer per index, if `roles` says so.
      where: which kernels are pruned, by path. By default those of the encoder if there is one under that
        name, as in a student or a classifier, and all otherwise. What is not the kernel of a linear or
        convolutional layer (biases, norms, tokens, positions) is never pruned.
      roles: what the parameters are, from `networks.roles`; read off the tree if None, and then nothing
        counts as stacked.

    Returns:
      The mask, to be applied to `q.mean` or to any draw from `q`.
    """
    ratios = {path_of(keys): ratio for keys, ratio in jax.tree_util.tree_leaves_with_path(posterior.snr(q))}
    kernels = _kernels(q.mean, where, roles)
    scores = {path: ratios[path] for path in kernels if path in ratios}
    if not scores:
        raise ValueError(f"none of the {len(kernels)} kernels has a posterior, hence a signal-to-noise ratio")
    return _mask(q.mean, scores, keep, scope, roles)


def magnitude_mask(
    params: PyTree,
    keep: float | Array,
    *,
    scope: str = "layer",
    where: Where = None,
    roles: Roles | None = None,
) -> PyTree:
    """Keep the weights of largest magnitude; arguments and result as in `snr_mask`."""
    scores = {path: jnp.abs(kernel) for path, kernel in _kernels(params, where, roles).items()}
    return _mask(params, scores, keep, scope, roles)


def random_mask(
    key: Array,
    params: PyTree,
    keep: float | Array,
    *,
    scope: str = "layer",
    where: Where = None,
    roles: Roles | None = None,
) -> PyTree:
    """Keep random weights, as many as the other masks do: the baseline of any criterion."""
    kernels = _kernels(params, where, roles)
    # One permutation of all the weights has no ties, and is uniform within every layer as well.
    scores = jax.random.permutation(key, sum(kernel.size for kernel in kernels.values()))
    return _mask(params, _split(scores, kernels), keep, scope, roles)


def apply(mask: PyTree, params: PyTree) -> PyTree:
    """Set the weights outside the mask to exactly 0 and leave every other bit unchanged."""
    with_path, treedef = jax.tree_util.tree_flatten_with_path(params)
    try:
        masks = treedef.flatten_up_to(mask)  # type: ignore[attr-defined]
    except ValueError as error:
        raise ValueError(f"the mask does not have the structure of the parameters: {error}") from None
    pruned = []
    for (keys, leaf), kept in zip(with_path, masks, strict=True):
        if kept is not None and jnp.result_type(kept) != jnp.bool_:
            raise ValueError(
                f"the mask at {path_of(keys)!r} must be booleans, got {jnp.result_type(kept)}: "
                "the arguments are apply(mask, params)"
            )
        if kept is not None and jnp.shape(kept) != jnp.shape(leaf):
            raise ValueError(
                f"the mask at {path_of(keys)!r} has shape {jnp.shape(kept)}, the parameter {jnp.shape(leaf)}"
            )
        pruned.append(leaf if kept is None else jnp.where(kept, leaf, 0))
    return jax.tree.unflatten(treedef, pruned)


class Count(NamedTuple):
    """Number of weights kept, and in total."""

    kept: int
    total: int

    @property
    def kept_fraction(self) -> float:
        """The fraction that is kept."""
        return self.kept / self.total

    @property
    def pruned_fraction(self) -> float:
        """The fraction that is set to 0."""
        return 1.0 - self.kept_fraction


class Sparsity(NamedTuple):
    """Counts over the kernels that a mask prunes; other parameters do not count.

    Attributes:
      layers: the count of every layer, by path; scanned ones as `encoder/blocks/3/mlp/up/kernel`.
      overall: their sum.
    """

    layers: dict[str, Count]
    overall: Count


def sparsity(mask: PyTree, *, roles: Roles | None = None) -> Sparsity:
    """Count the weights that a mask keeps; `roles` as in `snr_mask`."""
    layers: dict[str, Count] = {}
    for keys, kept in jax.tree_util.tree_leaves_with_path(mask):
        path, kept = path_of(keys), np.asarray(kept)
        stacked = _is_stacked(path, roles)
        names = layer_paths(path, roles[path], len(kept)) if roles and stacked else [path]
        parts = zip(names, kept if stacked else [kept], strict=True)
        layers |= {name: Count(int(layer.sum()), layer.size) for name, layer in parts}
    if not layers:
        raise ValueError("the mask is None everywhere: it prunes no kernel")
    kept, total = (sum(column) for column in zip(*layers.values(), strict=True))
    return Sparsity(layers, Count(kept, total))


class Row(NamedTuple):
    """One point of a pruning curve.

    Attributes:
      criterion: the name of the criterion.
      keep: the requested fraction.
      kept_fraction: the fraction of the kernels' weights that was kept.
      result: what `evaluate` returned.
    """

    criterion: str
    keep: float
    kept_fraction: float
    result: Any


def sweep(
    evaluate: Callable[[PyTree], Any],
    params: PyTree,
    criteria: Mapping[str, Callable[[float], PyTree]],
    fractions: Iterable[float] = FRACTIONS,
) -> list[Row]:
    """Evaluate pruned parameters for every criterion and fraction.

    Args:
      evaluate: maps pruned parameters to a number or a tree of numbers; it may keep a probe on the features
        or fit a new one.
      params: the parameters to prune.
      criteria: by name, a function from the fraction to keep to a mask, for instance
        `{"snr": lambda keep: snr_mask(q, keep), "magnitude": lambda keep: magnitude_mask(q.mean, keep)}`.
      fractions: the fractions to keep.

    Returns:
      One row per criterion and fraction, in that order.
    """
    fractions = tuple(fractions)
    for keep in fractions:
        _check_keep(keep)  # all of them before the first evaluation, which may take long
    rows = []
    for name, criterion in criteria.items():
        for keep in fractions:
            mask = criterion(keep)
            result = evaluate(apply(mask, params))
            rows.append(Row(name, keep, sparsity(mask).overall.kept_fraction, result))
    return rows


def _kernels(params, where: Where, roles: Roles | None) -> dict[str, Any]:
    """Return the kernels to prune, by path."""
    if isinstance(params, Posterior):
        raise ValueError("params is a Posterior: pass its mean")
    leaves = {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(params)}
    known = parameter_roles.infer(params) | dict(roles or {})
    candidates = {
        path: leaf for path, leaf in leaves.items() if is_float(leaf) and is_kernel(path, known[path])
    }
    if where is None:
        where = _in_encoder if any(map(_in_encoder, leaves)) else lambda path: True
    chosen = {path: leaf for path, leaf in candidates.items() if where(path)}
    if not chosen:
        raise ValueError(f"no kernel to prune: `where` selects none of {list(candidates)[:6]}")
    return chosen


def _is_stacked(path: str, roles: Roles | None) -> bool:
    return roles is not None and path in roles and roles[path].stacked


def _in_encoder(path: str) -> bool:
    return re.match("(params/)?encoder/", path) is not None


def _mask(params, scores: Mapping[str, Array], keep: float | Array, scope: str, roles: Roles | None):
    """Return the mask that keeps the highest scores; kernels without scores are not pruned."""
    _check_keep(keep)
    for path, score in scores.items():
        if checks.is_concrete(score) and np.any(np.isnan(np.asarray(score))):
            raise ValueError(f"the weights at {path!r} cannot be ranked: NaN")
    if scope == "layer":
        masks = {}
        for path, score in scores.items():
            layers = score.reshape(len(score) if _is_stacked(path, roles) else 1, -1)
            masks[path] = _keep_highest(layers, _kept_count(keep, layers.shape[1])).reshape(score.shape)
    elif scope == "global":
        flat = jnp.concatenate([score.reshape(1, -1) for score in scores.values()], axis=1)
        masks = _split(_keep_highest(flat, _kept_count(keep, flat.size))[0], scores)
    else:
        raise ValueError(f"scope must be 'layer' or 'global', got {scope!r}")
    return jax.tree_util.tree_map_with_path(lambda keys, _: masks.get(path_of(keys)), params)


@jax.jit
def _keep_highest(scores, count) -> Bool[Array, "layers n"]:
    """Return True at the `count` highest scores of each row; of equal ones at the first."""
    order = jnp.argsort(scores, axis=1, descending=True, stable=True)
    # `count` is traced, so that every fraction of a sweep runs the same program.
    kept = jnp.broadcast_to(jnp.arange(scores.shape[1])[None] < count, scores.shape)
    return jnp.put_along_axis(jnp.zeros_like(kept), order, kept, axis=1, inplace=False)


def _kept_count(keep: float | Array, n: int) -> int | Array:
    """Round half up; Python's `round`, to even, would turn 2.5 into 2 but 3.5 into 4."""
    return _traced_count(keep, n) if isinstance(keep, jax.Array) else math.floor(keep * n + 0.5)


@partial(jax.jit, static_argnames="n")
def _traced_count(keep: Array, n: int) -> Array:
    # Not by a product: 0.7 * 5 in float32 may be below 3.5, but both 3.5 / 5 and 0.7 round to the same.
    # By a scalar, XLA would not divide but multiply by its rounded inverse.
    sizes = jax.lax.optimization_barrier(jnp.full(n, n, keep.dtype))
    return jnp.sum((jnp.arange(n) + 0.5) / sizes <= keep)


def _split(flat: Array, like: Mapping[str, Any]) -> dict[str, Array]:
    """Split a vector into arrays of the given shapes, in order."""
    parts = jnp.split(flat, np.cumsum([array.size for array in like.values()])[:-1])
    return {path: part.reshape(array.shape) for (path, array), part in zip(like.items(), parts, strict=True)}


def _check_keep(keep: float | Array) -> None:
    if checks.is_concrete(keep) and not 0 <= float(keep) <= 1:
        raise ValueError(f"keep must be a fraction in [0, 1], got {keep}")
