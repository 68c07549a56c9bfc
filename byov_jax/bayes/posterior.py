"""A diagonal Gaussian posterior over any pytree of parameters.

Bayes by Backprop (Blundell et al., 2015) with `sigma^2 = exp(log_var)`. Mean and log-variance are trees of
the same structure; the log-variance of a point estimate is None.
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
    """`q(w) = N(mean, exp(log_var))`.

    Attributes:
      mean: any pytree of parameters.
      log_var: log-variances, a tree like `mean` with None where the parameter is a point estimate.
    """

    mean: Any
    log_var: Any


def init(params: PyTree, where: Where = "all", log_var: float | PyTree = -10.0) -> Posterior:
    """Return a posterior with mean `params`.

    Args:
      params: any pytree; leaves that are not floating-point arrays stay point estimates.
      where: which leaves are Bayesian: `"all"`, `"no_conv"`, `"linear_only"`, a regular expression on the
        path, or `callable(path, leaf)`.
      log_var: the initial log-variance, a number or a tree like `params`; it takes the dtype of the mean.
    """
    selected = jax.tree.leaves(select(params, where))
    with_path, treedef = jax.tree_util.tree_flatten_with_path(params)
    values = _aligned(params, log_var, "log_var")
    log_vars = []
    for (keys, leaf), value, bayesian in zip(with_path, values, selected, strict=True):
        if bayesian:
            _check_finite(path_of(keys), value)
        log_vars.append(jnp.full(leaf.shape, value, leaf.dtype) if bayesian else None)
    return Posterior(params, jax.tree.unflatten(treedef, log_vars))


def point(params: PyTree) -> Posterior:
    """Return the posterior of a deterministic model: every log-variance is None."""
    return Posterior(params, jax.tree.map(lambda _: None, params))


def sample(key: Array, q: Posterior, *, constrain: Callable[[Array], Array] = lambda noise: noise) -> PyTree:
    """Draw parameters `mean + exp(log_var / 2) * noise`, reparameterised: differentiable in both trees.

    The noise of a leaf depends on `key` and its path only, not on the other leaves.

    Args:
      key: key of the draw.
      q: the posterior.
      constrain: applied to the noise of each leaf. With a sharding constraint, each device generates only its
        shard of the noise.
    """
    leaves, treedef = _leaves(q)
    noise = _noise(key, {path: mean for path, mean, log_var in leaves if log_var is not None}, constrain)
    return jax.tree.unflatten(
        treedef,
        [mean if log_var is None else _draw(mean, log_var, noise[path]) for path, mean, log_var in leaves],
    )


def mean(q: Posterior) -> PyTree:
    """Return the posterior mean, which is also the mode."""
    return q.mean


def snr(q: Posterior) -> PyTree:
    """Return the signal-to-noise ratio `|mean| / sigma` of every weight, None for point estimates."""
    leaves, treedef = _leaves(q)
    ratios = [
        None if log_var is None else jnp.abs(mean) * jnp.exp(-0.5 * log_var) for _, mean, log_var in leaves
    ]
    return jax.tree.unflatten(treedef, ratios)


def size(q: Posterior) -> int:
    """Return the number of Bayesian scalars."""
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(q.log_var))


def kl(q: Posterior, mean: float | PyTree = 0.0, log_var: float | PyTree = 0.0) -> Float[Array, ""]:
    """Return `KL(q || N(mean, exp(log_var)))` in nats, summed over all Bayesian scalars, in float32.

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
    # exp(r) - 1 - r without cancellation, clipped because rounding could make it negative.
    variance_term = jnp.maximum(jnp.expm1(log_ratio) - log_ratio, 0.0)
    return 0.5 * jnp.sum(variance_term + jnp.square(mean_q - mean_p) * jnp.exp(-log_var_p))


def _draw(mean, log_var, noise):
    return (mean + jnp.exp(0.5 * log_var.astype(noise.dtype)) * noise).astype(mean.dtype)


def _noise(key, leaves: dict[str, Array], constrain: Callable[[Array], Array]) -> dict[str, Array]:
    """Draw standard normal noise by path, at least float32.

    Leaves of one shape share one compiled loop, so compilation time hardly grows with depth.
    """
    keys = _keys(key, list(leaves))
    groups: dict[tuple, list[str]] = {}
    for path, leaf in leaves.items():
        groups.setdefault((leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), []).append(path)
    noise: dict[str, Array] = {}
    for (shape, dtype), paths in groups.items():
        draws = jax.lax.map(
            lambda key, shape=shape, dtype=dtype: constrain(jax.random.normal(key, shape, dtype)),
            jnp.stack([keys[path] for path in paths]),
        )
        noise |= {path: constrain(draw) for path, draw in zip(paths, draws, strict=True)}
    return noise


def _keys(key, paths: list[str]) -> dict[str, Array]:
    """Fold 64 bits of each path's hash into the key, vectorised over paths."""
    if not paths:
        return {}
    digests = b"".join(hashlib.blake2b(path.encode(), digest_size=8).digest() for path in paths)
    words = np.frombuffer(digests, "<u4").reshape(-1, 2)
    fold = jax.vmap(lambda word: jax.random.fold_in(jax.random.fold_in(key, word[0]), word[1]))
    return dict(zip(paths, fold(words), strict=True))


def _leaves(q: Posterior):
    """Validate a posterior; return `[(path, mean, log_var or None)]` and the structure of the mean."""
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
    """Return the leaves of `other`, a scalar or a tree like `tree`, in the order of the leaves of `tree`."""
    with_path, treedef = jax.tree_util.tree_flatten_with_path(tree)
    if _is_scalar(other):
        return [other] * len(with_path)
    try:
        leaves = treedef.flatten_up_to(other)  # type: ignore[attr-defined]
    except ValueError as error:
        other_leaves = jax.tree_util.tree_leaves_with_path(other, is_leaf=lambda leaf: leaf is None)
        paths, other_paths = ({path_of(keys) for keys, _ in items} for items in (with_path, other_leaves))
        unmatched = sorted(paths ^ other_paths)
        detail = f"{unmatched[0]!r} is in only one of them" if unmatched else str(error)
        raise ValueError(f"{name} does not have the structure of the parameters: {detail}") from None
    for (keys, leaf), value in zip(with_path, leaves, strict=True):
        if value is not None and getattr(value, "shape", None) != getattr(leaf, "shape", None):
            raise ValueError(
                f"{name} at {path_of(keys)!r} has shape {getattr(value, 'shape', type(value).__name__)}, "
                f"the parameter has {getattr(leaf, 'shape', type(leaf).__name__)}"
            )
    return leaves


def _check_finite(path: str, log_var) -> None:
    """Reject a log-variance that is not finite; tracers and arrays on other hosts are not checked."""
    concrete = not isinstance(log_var, jax.core.Tracer) and getattr(log_var, "is_fully_addressable", True)
    if concrete and not np.all(np.isfinite(np.asarray(log_var))):
        raise ValueError(f"log_var at {path!r} is not finite; -10 is the usual initial value")


def _is_scalar(x) -> bool:
    return isinstance(x, int | float | np.generic) or (hasattr(x, "ndim") and x.ndim == 0)
