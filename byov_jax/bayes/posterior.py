"""Weights as distributions: a diagonal Gaussian over any pytree of parameters.

Bayes by Backprop (Blundell et al., 2015) with `sigma^2 = exp(log_var)`. The mean and the log-variance are
twin trees; where a parameter is a point estimate, its log-variance is None.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from byov_jax.bayes.select import Where, is_float, path_of, select


class Posterior(NamedTuple):
    """`q(w) = N(mean, exp(log_var))`, leaf by leaf.

    Attributes:
      mean: the parameters, any pytree.
      log_var: a tree like `mean` of log-variances, None where the parameter is a point estimate.
    """

    mean: Any
    log_var: Any


def init(params: PyTree, where: Where = "all", log_var: float | PyTree = -10.0) -> Posterior:
    """A posterior centred on `params`.

    Args:
      params: any pytree of arrays; what is not a floating-point array stays a point estimate.
      where: which leaves become Bayesian: `"all"`, `"no_conv"`, `"linear_only"`, a regular expression on the
        path, or `callable(path, leaf)`.
      log_var: the initial log-variance, one number or a tree like `params`.

    Returns:
      A `Posterior` whose mean is `params` and whose log-variances have the dtype of their means.
    """
    chosen = jax.tree.leaves(select(params, where))
    with_path, treedef = jax.tree_util.tree_flatten_with_path(params)
    values = _aligned(params, log_var, "log_var")
    log_vars = []
    for (keys, leaf), value, bayesian in zip(with_path, values, chosen, strict=True):
        if bayesian:
            _check_finite(path_of(keys), value)
        log_vars.append(jnp.full(leaf.shape, value, leaf.dtype) if bayesian else None)
    return Posterior(params, jax.tree.unflatten(treedef, log_vars))


def point(params: PyTree) -> Posterior:
    """The posterior that is certain of `params`: every log-variance is None, so it draws nothing."""
    return Posterior(params, jax.tree.map(lambda _: None, params))


def sample(key: Array, q: Posterior, *, place: Callable[[Array], Array] = lambda noise: noise) -> PyTree:
    """Draws parameters `mean + exp(log_var / 2) * noise`, differentiable in both trees (reparameterised).

    The noise of a leaf depends on `key` and its path only: adding a layer elsewhere leaves it as it is.

    Args:
      key: of the draw.
      q: the posterior.
      place: called with the noise of each leaf. Where devices share the parameters among them, a sharding
        constraint here lets each device make only its own part of the noise.
    """
    leaves, treedef = _leaves(q)
    noise = _noise(key, {path: mean for path, mean, log_var in leaves if log_var is not None}, place)
    return jax.tree.unflatten(
        treedef,
        [mean if log_var is None else _draw(mean, log_var, noise[path]) for path, mean, log_var in leaves],
    )


def mean(q: Posterior) -> PyTree:
    """The parameters at the posterior's mean, which is also its mode."""
    return q.mean


def snr(q: Posterior) -> PyTree:
    """Signal-to-noise ratio `|mean| / sigma` of every weight; None where there is no posterior."""
    leaves, treedef = _leaves(q)
    ratios = [
        None if log_var is None else jnp.abs(mean) * jnp.exp(-0.5 * log_var) for _, mean, log_var in leaves
    ]
    return jax.tree.unflatten(treedef, ratios)


def size(q: Posterior) -> int:
    """How many scalars are Bayesian."""
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(q.log_var))


def kl(q: Posterior, mean: float | PyTree = 0.0, log_var: float | PyTree = 0.0) -> Float[Array, ""]:
    """`KL(q || N(mean, exp(log_var)))` in nats, summed over every Bayesian scalar, in float32.

    `1/2 sum[ rho_p - rho_q + (exp(rho_q) + (mu_q - mu_p)^2) exp(-rho_p) - 1 ]`.

    Args:
      q: the posterior.
      mean: the prior's mean: a scalar, or a tree like `q.mean`.
      log_var: the prior's log-variance: a scalar, or a tree like `q.mean`.
    """
    leaves, _ = _leaves(q)
    prior_means = _aligned(q.mean, mean, "prior mean")
    prior_log_vars = _aligned(q.mean, log_var, "prior log_var")
    terms = []
    for (path, mean_q, log_var_q), *prior in zip(leaves, prior_means, prior_log_vars, strict=True):
        if log_var_q is None:
            continue
        if any(moment is None for moment in prior):
            raise ValueError(f"the prior has None at {path!r}, which is Bayesian")
        terms.append(_kl(mean_q, log_var_q, *prior))
    return jnp.sum(jnp.stack(terms)) if terms else jnp.zeros((), jnp.float32)


def _kl(mean_q, log_var_q, mean_p, log_var_p):
    mean_q, log_var_q, mean_p, log_var_p = (
        jnp.asarray(x, jnp.float32) for x in (mean_q, log_var_q, mean_p, log_var_p)
    )
    log_ratio = log_var_q - log_var_p
    # exp(r) - 1 - r without cancellation; rounding must not push it below the zero that it cannot cross.
    spread = jnp.maximum(jnp.expm1(log_ratio) - log_ratio, 0.0)
    return 0.5 * jnp.sum(spread + jnp.square(mean_q - mean_p) * jnp.exp(-log_var_p))


def _draw(mean, log_var, noise):
    return (mean + jnp.exp(0.5 * log_var.astype(noise.dtype)) * noise).astype(mean.dtype)


def _noise(key, leaves: dict[str, Array], place: Callable[[Array], Array]) -> dict[str, Array]:
    """Standard normal noise, by path, at least float32.

    Leaves of one shape share one compiled loop: a deep network compiles almost as fast as a shallow one.
    """
    keys = _keys(key, list(leaves))
    groups: dict[tuple, list[str]] = {}
    for path, leaf in leaves.items():
        groups.setdefault((leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), []).append(path)
    noise: dict[str, Array] = {}
    for form, paths in groups.items():
        draws = jax.lax.map(
            lambda key, form=form: place(jax.random.normal(key, *form)),
            jnp.stack([keys[path] for path in paths]),
        )
        noise |= {path: place(draw) for path, draw in zip(paths, draws, strict=True)}
    return noise


def _keys(key, paths: list[str]) -> dict[str, Array]:
    """One key per path, from 64 bits of the path's hash, all in one vectorised fold."""
    if not paths:
        return {}
    digests = b"".join(hashlib.blake2b(path.encode(), digest_size=8).digest() for path in paths)
    words = np.frombuffer(digests, "<u4").reshape(-1, 2)
    fold = jax.vmap(lambda word: jax.random.fold_in(jax.random.fold_in(key, word[0]), word[1]))
    return dict(zip(paths, fold(words), strict=True))


def _leaves(q: Posterior):
    """`[(path, mean, log_var or None)]` and the mean's tree structure, once the twins are known to match."""
    log_vars = _aligned(q.mean, q.log_var, "log_var")
    with_path, treedef = jax.tree_util.tree_flatten_with_path(q.mean)
    leaves = [
        (path_of(keys), leaf, log_var) for (keys, leaf), log_var in zip(with_path, log_vars, strict=True)
    ]
    for path, leaf, log_var in leaves:
        if log_var is None:
            continue
        if not is_float(leaf):
            raise ValueError(f"the mean at {path!r} is not a floating-point array and cannot have a log_var")
        _check_finite(path, log_var)
    return leaves, treedef


def _aligned(tree, other, name: str) -> list:
    """Leaves of `other` (a scalar stands for all) in the order of `tree`'s; an error names the misfit."""
    with_path, treedef = jax.tree_util.tree_flatten_with_path(tree)
    if _is_scalar(other):
        return [other] * len(with_path)
    try:
        leaves = treedef.flatten_up_to(other)  # type: ignore[attr-defined]
    except ValueError as error:
        mine = {path_of(keys) for keys, _ in with_path}
        theirs = jax.tree_util.tree_leaves_with_path(other, is_leaf=lambda leaf: leaf is None)
        odd = sorted(mine ^ {path_of(keys) for keys, _ in theirs})
        where = f"{odd[0]!r} is in only one of them" if odd else str(error)
        raise ValueError(f"{name} does not have the structure of the parameters: {where}") from None
    for (keys, leaf), twin in zip(with_path, leaves, strict=True):
        if twin is not None and getattr(twin, "shape", None) != getattr(leaf, "shape", None):
            raise ValueError(
                f"{name} at {path_of(keys)!r} has shape {getattr(twin, 'shape', type(twin).__name__)}, "
                f"the parameter has {getattr(leaf, 'shape', type(leaf).__name__)}"
            )
    return leaves


def _check_finite(path: str, log_var) -> None:
    """Refuses a log-variance that is known to be bad; inside jit nothing is known."""
    known = not isinstance(log_var, jax.core.Tracer) and getattr(log_var, "is_fully_addressable", True)
    if known and not np.all(np.isfinite(np.asarray(log_var))):
        raise ValueError(f"log_var at {path!r} is not finite; -10 is the usual start")


def _is_scalar(x) -> bool:
    return isinstance(x, int | float | np.generic) or (hasattr(x, "ndim") and x.ndim == 0)
