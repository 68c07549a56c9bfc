"""A diagonal Gaussian posterior over any pytree of parameters.

Bayes by Backprop (Blundell et al., 2015) with `sigma^2 = exp(log_var)`. Mean and log-variance are trees of
the same structure; the log-variance of a point estimate is None. Both are float32 or wider: a bfloat16
weight could neither hold a small sigma nor follow a small update.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from byov_jax.bayes import noise
from byov_jax.bayes.paths import is_float, path_of
from byov_jax.bayes.roles import Roles, layer_paths
from byov_jax.bayes.select import Where, select

LIMIT = 60.0
"""Beyond exp(+-60) float32 variances neither differ nor add up: the KL and the SNR saturate there."""

MAX_LOG_VAR = 100.0
"""Largest magnitude of an initial log-variance."""


class Posterior(NamedTuple):
    """`q(w) = N(mean, exp(log_var))`.

    Attributes:
      mean: any pytree of parameters.
      log_var: log-variances, a tree like `mean` with None where the parameter is a point estimate.
    """

    mean: Any
    log_var: Any


def init(
    params: PyTree, where: Where = "all", log_var: float | PyTree = -10.0, *, roles: Roles | None = None
) -> Posterior:
    """Return a posterior with mean `params`.

    Args:
      params: any pytree of parameters, without other variables such as batch statistics; leaves that are not
        floating-point arrays stay point estimates. Those of less than 32 bits become float32.
      where: which leaves are Bayesian: `"all"`, `"no_conv"`, `"linear_only"`, a regular expression on the
        path, `callable(path, leaf)`, or a tree of bools.
      log_var: the initial log-variance, a number or a tree like `params`.
      roles: what the parameters are, from `networks.roles`, for the presets; read off the tree if None.
    """
    _check_parameters(params)
    _check_init(log_var)
    params = jax.tree.map(lambda leaf: leaf.astype(_wide(leaf)) if is_float(leaf) else leaf, params)
    selected = jax.tree.leaves(select(params, where, roles))
    with_path, treedef = jax.tree_util.tree_flatten_with_path(params)
    values = _aligned(params, log_var, "log_var")
    shapes, chosen = [], []
    for (keys, leaf), value, bayesian in zip(with_path, values, selected, strict=True):
        if bayesian:
            _check_finite(path_of(keys), value)
        shapes.append((leaf.shape, leaf.dtype) if bayesian else None)
        chosen.append(value if bayesian else None)
    return Posterior(params, jax.tree.unflatten(treedef, _full(chosen, tuple(shapes))))


def point(params: PyTree) -> Posterior:
    """Return the posterior of a deterministic model: every log-variance is None."""
    return Posterior(params, jax.tree.map(lambda _: None, params))


def collect(params: PyTree) -> Posterior:
    """Return one posterior over the parameters of a network that holds any number of `Bayesian` modules.

    The parameters of each of them, a dict of `mean` and `log_var`, become its part of the posterior; all
    others are point estimates. `kl(collect(variables["params"]))` is the KL of the whole network.
    """

    def is_posterior(node: Any) -> bool:
        return isinstance(node, Mapping) and set(node) == {"mean", "log_var"}

    nodes, treedef = jax.tree.flatten(params, is_leaf=is_posterior)
    parts = [Posterior(**node) if is_posterior(node) else point(node) for node in nodes]
    means, log_vars = (jax.tree.unflatten(treedef, column) for column in zip(*parts, strict=True))
    return Posterior(means, log_vars)


def sample(key: Array, q: Posterior, *, constrain: Callable[[Array], Array] | None = None) -> PyTree:
    """Draw parameters `mean + exp(log_var / 2) * noise`, reparameterised: differentiable in both trees.

    The noise of a leaf depends on `key` and its path only, not on the other leaves. Point estimates are
    returned as they are.

    Args:
      key: key of the draw.
      q: the posterior.
      constrain: applied to the noise of each leaf. With a sharding constraint, each device generates only its
        shard of the noise.
    """
    leaves, treedef = _leaves(q)
    means = {path: mean for path, mean, log_var in leaves if log_var is not None}
    log_vars = {path: log_var for path, _, log_var in leaves if log_var is not None}
    drawn = _sample(key, means, log_vars, constrain)
    return jax.tree.unflatten(treedef, [drawn.get(path, mean) for path, mean, _ in leaves])


def mean(q: Posterior) -> PyTree:
    """Return the posterior mean, which is also the mode."""
    return q.mean


def snr(q: Posterior) -> PyTree:
    """Return the signal-to-noise ratio `|mean| / sigma` of every weight, None for point estimates."""
    leaves, treedef = _leaves(q)
    bayesian = [(mean, log_var) for _, mean, log_var in leaves if log_var is not None]
    ratios = iter(_snr(bayesian))
    return jax.tree.unflatten(treedef, [None if leaf[2] is None else next(ratios) for leaf in leaves])


def size(q: Posterior) -> int:
    """Return the number of Bayesian scalars."""
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(q.log_var))


def kl(
    q: Posterior, mean: float | PyTree | Posterior = 0.0, log_var: float | PyTree = 0.0
) -> Float[Array, ""]:
    """Return `KL(q || N(mean, exp(log_var)))` in nats, summed over all Bayesian scalars, in float32.

    `1/2 sum[ rho_p - rho_q + (exp(rho_q) + (mu_q - mu_p)^2) exp(-rho_p) - 1 ]`. Log-variances and their
    differences saturate at +-60, so that the KL is finite wherever the square of the distance of the means,
    over the prior's variance, is a float32.

    Args:
      q: the posterior.
      mean: the prior's mean: a scalar, or a tree like `q.mean` or a prefix of it, with leaves that broadcast
        to the parameters. Or the prior itself as a `Posterior`: `kl(q, p)`.
      log_var: the prior's log-variance, likewise.
    """
    return _kl_total(_pairs(q, mean, log_var))


def kl_by_leaf(
    q: Posterior,
    mean: float | PyTree | Posterior = 0.0,
    log_var: float | PyTree = 0.0,
    *,
    roles: Roles | None = None,
) -> dict[str, Float[Array, ""]]:
    """Return the KL of every layer by path, in nats.

    Args:
      q: the posterior.
      mean: the prior's mean, or the prior, as in `kl`.
      log_var: the prior's log-variance, as in `kl`.
      roles: what the parameters are, from `networks.roles`: layers stacked by a scan have a path each, such
        as `encoder/blocks/3/mlp/up/kernel`. If None, nothing counts as stacked.
    """
    pairs = _pairs(q, mean, log_var)
    stacked = [path for path in pairs if roles and path in roles and roles[path].stacked]
    terms = _kl_by_leaf(pairs, frozenset(stacked))
    for path in stacked:
        rows = terms.pop(path)
        terms |= zip(layer_paths(path, roles[path], len(rows)), rows, strict=True)  # type: ignore[index]
    return terms


def kl_gradient(
    q: Posterior, mean: float | PyTree | Posterior = 0.0, log_var: float | PyTree = 0.0
) -> Posterior:
    """Return the gradient of `kl` in closed form, zero at point estimates.

    `(mu_q - mu_p) exp(-rho_p)` in the mean and `(exp(rho_q - rho_p) - 1) / 2` in the log-variance.
    """
    leaves, treedef = _leaves(q)
    gradients = _kl_gradient(_pairs(q, mean, log_var))
    means = [gradients[path][0] if path in gradients else jnp.zeros_like(leaf) for path, leaf, _ in leaves]
    log_vars = [gradients[path][1] if path in gradients else None for path, _, _ in leaves]
    return Posterior(jax.tree.unflatten(treedef, means), jax.tree.unflatten(treedef, log_vars))


def implied_l2(
    q: Posterior, mean: float | PyTree | Posterior = 0.0, log_var: float | PyTree = 0.0, *, weight=1.0
) -> Float[Array, ""]:
    """Return the L2 penalty of the means that `weight * kl` amounts to: `lambda / 2 * |mu_q - mu_p|^2`.

    It is the weight over the prior's variance, averaged over the Bayesian scalars. With `weight = beta / Z`,
    millions of weights and `kl_norm="params"`, that is 1e-7 or less, where optimizers decay by 1e-6 to 1e-1.
    Arguments as in `kl`.
    """
    return _implied_l2(_pairs(q, mean, log_var), weight)


@jax.jit(static_argnames="shapes", inline=True)
def _full(values: list, shapes: tuple) -> list[Array | None]:
    """Return arrays of (shape, dtype) filled with the values, and None where there is none."""
    pairs = zip(values, shapes, strict=True)
    return [None if value is None else jnp.full(shape[0], value, shape[1]) for value, shape in pairs]


@jax.jit(static_argnames="constrain", inline=True)
def _sample(key, means: dict[str, Array], log_vars: dict[str, Array], constrain) -> dict[str, Array]:
    return _draw(constrain, key, means, log_vars)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _draw(constrain, key, means, log_vars):
    return _draw_and_deviation(constrain, key, means, log_vars)[0]


@_draw.defjvp
def _draw_jvp(constrain, primals, tangents):
    """`d draw = d mean + deviation / 2 * d log_var`: one residual instead of three."""
    _, d_means, d_log_vars = tangents
    drawn, deviations = _draw_and_deviation(constrain, *primals)
    d_drawn = {
        path: (d_mean + (0.5 * deviations[path]).astype(d_mean.dtype) * d_log_vars[path]).astype(d_mean.dtype)
        for path, d_mean in d_means.items()
    }
    return drawn, d_drawn


def _draw_and_deviation(constrain, key, means, log_vars):
    """Return the draw and its deviation from the mean, by path."""

    def draw():
        drawn = noise.normal(key, means, constrain)
        deviations = {path: jnp.exp(0.5 * log_vars[path]).astype(x.dtype) * x for path, x in drawn.items()}
        draws = {path: (mean + deviations[path]).astype(mean.dtype) for path, mean in means.items()}
        return draws, deviations

    if constrain is not None or not means:
        return draw()
    # XLA would fuse the sum of mean and deviation into what uses a weight: layers that are alike but for the
    # place of their noise would each be compiled, and a bias drawn again for every image. Nothing is fused
    # with the result of a condition, and XLA does not know that this one holds.
    word = jax.random.key_data(key).reshape(-1)[0]
    alike = {path: log_vars[path].astype(_wide(mean)) for path, mean in means.items()}
    return jax.lax.cond(word != word + 1, draw, lambda: (means, alike))


@jax.jit(inline=True)
def _snr(bayesian: list[tuple[Array, Array]]) -> list[Array]:
    return [jnp.abs(mean) * _exp(-0.5 * log_var) for mean, log_var in bayesian]


@jax.jit(inline=True, static_argnames="stacked")
def _kl_by_leaf(pairs: dict[str, tuple], stacked: frozenset[str] = frozenset()) -> dict[str, Array]:
    """Return the KL by path, of stacked layers a vector."""
    terms = {}
    for path, moments in pairs.items():
        arrays = _float32(*moments)
        terms[path] = jax.vmap(_kl)(*jnp.broadcast_arrays(*arrays)) if path in stacked else _kl(*arrays)
    return terms


@jax.jit(inline=True)
def _kl_total(pairs: dict[str, tuple]) -> Array:
    """Return the sum over all leaves; those of one shape are stacked, and summed by one kernel."""
    alike: dict[tuple, list[tuple]] = {}
    for moments in pairs.values():
        alike.setdefault(tuple(map(jnp.shape, moments)), []).append(_float32(*moments))
    terms = [jnp.sum(jax.vmap(_kl)(*map(jnp.stack, zip(*leaves, strict=True)))) for leaves in alike.values()]
    return jnp.sum(jnp.stack(terms)) if terms else jnp.zeros((), jnp.float32)


@jax.jit(inline=True)
def _implied_l2(pairs: dict[str, tuple], weight) -> Array:
    """Return the mean over all scalars of the weight over the prior's variance."""
    sizes = [jnp.size(mean) for mean, *_ in pairs.values()]
    precisions = [jnp.mean(_exp(-jnp.asarray(log_var_p))) for *_, log_var_p in pairs.values()]
    total = sum((n * precision for n, precision in zip(sizes, precisions, strict=True)), start=jnp.zeros(()))
    return weight * total / max(sum(sizes), 1)


@jax.jit(inline=True)
def _kl_gradient(pairs: dict[str, tuple]) -> dict[str, tuple[Array, Array]]:
    gradients = {}
    for path, moments in pairs.items():
        mean_q, log_var_q, mean_p, log_var_p = _float32(*moments)
        d_log_var = 0.5 * jnp.expm1(_clip(log_var_q - log_var_p))
        gradients[path] = ((mean_q - mean_p) * _exp(-log_var_p), d_log_var)
    return gradients


def _kl(mean_q, log_var_q, mean_p, log_var_p):
    log_ratio = _clip(log_var_q - log_var_p)
    # exp(r) - 1 - r without cancellation, clipped because rounding could make it negative.
    variance_term = jnp.maximum(jnp.expm1(log_ratio) - log_ratio, 0.0)
    return 0.5 * jnp.sum(variance_term + jnp.square(mean_q - mean_p) * _exp(-log_var_p))


def _float32(*arrays) -> tuple[Array, ...]:
    return tuple(jnp.asarray(x, jnp.float32) for x in arrays)


def _clip(log):
    return jnp.clip(log, -LIMIT, LIMIT)


def _exp(log):
    return jnp.exp(_clip(log))


def _wide(leaf):
    """Return the dtype of a leaf, or float32 if it has less than 32 bits."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _pairs(q: Posterior, mean, log_var) -> dict[str, tuple]:
    """Return (mean, log_var) of the posterior and the prior for every Bayesian leaf, by path."""
    if isinstance(mean, Posterior):
        mean, log_var = mean
    leaves, _ = _leaves(q)
    prior_means = _broadcast(q.mean, mean, "prior mean")
    prior_log_vars = _broadcast(q.mean, log_var, "prior log_var")
    pairs = {}
    for (path, mean_q, log_var_q), *prior in zip(leaves, prior_means, prior_log_vars, strict=True):
        if log_var_q is None:
            continue
        if any(moment is None for moment in prior):
            raise ValueError(f"the prior has None at {path!r}, which is Bayesian")
        _check_finite(path, prior[0], "the prior's mean")
        _check_finite(path, prior[1], "the prior's log_var")
        pairs[path] = (mean_q, log_var_q, *prior)
    return pairs


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
        raise ValueError(
            f"{name} does not have the structure of the parameters: {_difference(tree, other) or error}"
        ) from None
    for (keys, leaf), value in zip(with_path, leaves, strict=True):
        if value is not None and getattr(value, "shape", None) != getattr(leaf, "shape", None):
            raise ValueError(
                f"{name} at {path_of(keys)!r} has shape {getattr(value, 'shape', type(value).__name__)}, "
                f"the parameter has {getattr(leaf, 'shape', type(leaf).__name__)}"
            )
    return leaves


def _broadcast(tree, other, name: str) -> list:
    """Return the leaves of `other`, a prefix of `tree` that broadcasts to it, in the order of `tree`."""
    with_path = jax.tree_util.tree_leaves_with_path(tree)
    try:
        leaves = jax.tree.leaves(
            jax.tree_util.tree_map(
                lambda value, part: jax.tree.map(lambda _: _Leaf(value), part),
                other,
                tree,
                is_leaf=lambda node: node is None,
            ),
            is_leaf=lambda node: isinstance(node, _Leaf),
        )
        assert len(leaves) == len(with_path)
    except (ValueError, TypeError, AssertionError) as error:
        raise ValueError(
            f"{name} does not have the structure of the parameters: {_difference(tree, other) or error}"
        ) from None
    for (keys, leaf), (value,) in zip(with_path, leaves, strict=True):
        shape = getattr(leaf, "shape", ())
        if value is not None and not _broadcasts(jnp.shape(value), shape):
            raise ValueError(
                f"{name} at {path_of(keys)!r} has shape {jnp.shape(value)}, the parameter has {shape}"
            )
    return [value for (value,) in leaves]


class _Leaf(NamedTuple):
    """A value that is no longer a part of the tree."""

    value: Any


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _difference(tree, other) -> str:
    """Name a path that only one of two trees has."""
    leaves = (
        jax.tree_util.tree_leaves_with_path(part, is_leaf=lambda leaf: leaf is None) for part in (tree, other)
    )
    paths, others = ({path_of(keys) for keys, _ in items} for items in leaves)
    unmatched = sorted(paths ^ others)
    return f"{unmatched[0]!r} is in only one of them" if unmatched else ""


def _check_parameters(params) -> None:
    """Refuse variables that are not parameters, such as batch statistics: their draws would mean nothing."""
    for keys, collections in _flax_variables(params):
        at, of = (f" at {path_of(keys)!r}", " of each") if keys else ("", "")
        raise ValueError(
            f"these are Flax variables{at} with the collections {', '.join(map(str, collections))}: "
            f"pass variables['params']{of}"
        )
    variables = jax.tree.leaves(params, is_leaf=lambda node: "Variable" in _class_names(node))  # of NNX
    kinds = {
        names[0] for names in map(_class_names, variables) if "Variable" in names and "Param" not in names
    }
    if kinds:
        raise ValueError(f"this state holds {', '.join(sorted(kinds))} too: pass nnx.state(model, nnx.Param)")


def _flax_variables(tree) -> list[tuple[tuple, Mapping]]:
    """Return the dicts of Flax collections in a tree that are more than parameters, with their key paths."""

    def is_variables(node: Any) -> bool:
        return isinstance(node, Mapping) and ("batch_stats" in node or ("params" in node and len(node) > 1))

    nodes = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_variables)
    return [(keys, node) for keys, node in nodes if is_variables(node)]


def _check_init(log_var) -> None:
    """Reject initial log-variances whose sigma float32 cannot represent."""
    for keys, value in jax.tree_util.tree_leaves_with_path(log_var):
        at = f" at {path_of(keys)!r}" if keys else ""
        if _is_concrete(value) and np.any(np.isfinite(value) & (np.abs(value) > MAX_LOG_VAR)):
            allowed = f"in [-{MAX_LOG_VAR:g}, {MAX_LOG_VAR:g}]"
            raise ValueError(f"log_var{at} must be {allowed}; -10 is the usual initial value")


def _class_names(node: Any) -> list[str]:
    return [kind.__name__ for kind in type(node).__mro__]


def _check_finite(path: str, log_var, name: str = "log_var") -> None:
    """Reject a log-variance that is not finite; tracers and arrays on other hosts are not checked."""
    if _is_concrete(log_var) and not np.all(np.isfinite(np.asarray(log_var))):
        raise ValueError(f"{name} at {path!r} is not finite")


def _is_concrete(x) -> bool:
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)


def _is_scalar(x) -> bool:
    return isinstance(x, int | float | np.generic) or (hasattr(x, "ndim") and x.ndim == 0)
