"""How many weight draws and examples fit into memory at once."""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

CPU_BUDGET = 32 * 2**20
"""Bytes of activations at once on a CPU: beyond its caches a larger batch is slower."""


class BatchSize(NamedTuple):
    """Draws and examples to compute at once."""

    draws: int
    examples: int


def choose(apply, params: Any, x: Any, draws: int) -> BatchSize:
    """Return the largest batch of examples, then the most draws of it, that half of the free memory holds.

    The traced program is analysed, neither compiled nor run, and only once for the same function and shapes.
    """
    n = jax.tree.leaves(x)[0].shape[0]
    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
    leaves, treedef = jax.tree.flatten((abstract, _rows(x, 1)))
    per_draw, per_example = _memory(apply, treedef, *leaves)
    budget = 2 ** int(np.log2(max(_budget(), 1)))  # a little more or less free memory changes no program
    examples = int(np.clip(budget // per_example, 1, n))
    if examples < n:
        examples = 2 ** int(np.log2(examples))  # inputs of different sizes then share one compiled program
    return BatchSize(int(np.clip(budget // (per_draw + per_example * examples), 1, draws)), examples)


def _budget() -> int:
    stats = jax.local_devices()[0].memory_stats()
    if not stats or "bytes_limit" not in stats:
        return CPU_BUDGET
    return (stats["bytes_limit"] - stats["bytes_in_use"]) // 2


@lru_cache(maxsize=256)
def _memory(apply, treedef: Any, *leaves: jax.ShapeDtypeStruct) -> tuple[int, int]:
    """Return the bytes per draw and per example, from the peak memory of one draw at two batch sizes.

    It remembers shapes, not arrays.
    """
    params, x = jax.tree.unflatten(treedef, leaves)
    small, large = (_activation_bytes(apply, params, _rows(x, size)) for size in (1, 9))
    per_example = max((large - small) // 8, 1)
    return _bytes(jax.tree.leaves(params)) + max(small - per_example, 0), per_example


def _rows(tree, n: int):
    """Return the shapes of the arrays of `tree` with `n` rows."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((n, *a.shape[1:]), a.dtype), tree)


def _activation_bytes(apply, params, x) -> int:
    """Return the peak bytes inside `apply`, without `params` and inputs."""
    return _peak(jax.make_jaxpr(apply)(params, x).jaxpr)


def _peak(jaxpr: core.Jaxpr) -> int:
    """Return an upper bound on the peak bytes of a program's values: freed after last use, no fusion."""
    last_use = {v: i for i, e in enumerate(jaxpr.eqns) for v in e.invars if isinstance(v, core.Var)}
    last_use |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if isinstance(v, core.Var)}
    live: dict[core.Var, int] = {}
    peak = 0
    for i, equation in enumerate(jaxpr.eqns):
        live |= {v: _bytes([v.aval]) for v in equation.outvars}
        inner = max((_peak(sub) for sub in _inner_jaxprs(equation)), default=0)
        peak = max(peak, sum(live.values()) + inner)
        live = {v: size for v, size in live.items() if last_use.get(v, -1) > i}
    return peak


def _inner_jaxprs(equation: core.JaxprEqn) -> list[core.Jaxpr]:
    leaves = [p for value in equation.params.values() for p in jax.tree.leaves(value, is_leaf=_is_jaxpr)]
    return [getattr(p, "jaxpr", p) for p in leaves if _is_jaxpr(p)]


def _is_jaxpr(x: Any) -> bool:
    return isinstance(x, core.Jaxpr | core.ClosedJaxpr)


def _bytes(avals: Any) -> int:
    return sum(int(np.prod(a.shape)) * a.dtype.itemsize for a in avals if hasattr(a, "shape"))
