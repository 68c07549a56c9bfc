"""Count the Bayesian weights of a posterior; layerwise statistics of sigma and the signal-to-noise ratio."""

import math
from collections import defaultdict
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from byov_jax.bayes import posterior
from byov_jax.bayes import roles as parameter_roles
from byov_jax.bayes.paths import path_of
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.roles import Roles, layer_paths
from byov_jax.role import OWNERS, Role


class LayerStatistics(NamedTuple):
    """Mean and maximum over one parameter tensor of `sigma` and `snr = |mean| / sigma`."""

    sigma_mean: Float[Array, ""]
    sigma_max: Float[Array, ""]
    snr_mean: Float[Array, ""]
    snr_max: Float[Array, ""]


def layer_statistics(q: Posterior, *, roles: Roles | None = None) -> dict[str, LayerStatistics]:
    """Return the statistics of every Bayesian tensor by path, in a compiled function separate from the step.

    Args:
      q: the posterior.
      roles: what the parameters are, from `networks.roles`: layers stacked by a scan have a path each, such
        as `encoder/blocks/3/mlp/up/kernel`. If None, nothing counts as stacked.
    """
    stacked = frozenset(path for path, role in (roles or {}).items() if role.stacked)
    log_vars = {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(q.log_var)}
    means = {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(q.mean)}
    return _statistics(Posterior({path: means[path] for path in log_vars}, log_vars), stacked)


def selected(q: Posterior, *, roles: Roles | None = None) -> str:
    """Summarize in one line which parameters are Bayesian, to check the choice of `where`.

    >>> print(selected(q))
    Bayesian: 72 of 172 weights; tensors: 0 of 2 convolution, 2 of 2 linear, 0 of 2 norm

    Args:
      q: the posterior.
      roles: what the parameters are, from `networks.roles`; read off the tree if None.
    """
    leaves = {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(q.mean)}
    known = parameter_roles.infer(q.mean) | dict(roles or {})
    bayesian = {path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(q.log_var)}
    counts: dict[str, list[bool]] = defaultdict(list)
    for path in leaves:
        counts[known[path].owner].append(path in bayesian)
    kinds = [f"{sum(counts[owner])} of {len(counts[owner])} {owner}" for owner in OWNERS if counts[owner]]
    total = sum(math.prod(jnp.shape(leaf)) for leaf in leaves.values())
    return f"Bayesian: {posterior.size(q):,} of {total:,} weights; tensors: {', '.join(kinds)}"


@jax.jit(static_argnums=1)
def _statistics(q: Posterior, stacked: frozenset[str]) -> dict[str, LayerStatistics]:
    ratios = posterior.snr(q)
    layers: dict[str, LayerStatistics] = {}
    for path, log_var in q.log_var.items():
        sigma, snr = jnp.exp(0.5 * log_var), ratios[path]
        if path in stacked:
            names = layer_paths(path, Role("other", stacked=True), len(sigma))
            layers |= {name: _summary(sigma[i], snr[i]) for i, name in enumerate(names)}
        else:
            layers[path] = _summary(sigma, snr)
    return layers


def _summary(sigma, snr) -> LayerStatistics:
    sigma, snr = sigma.astype(jnp.float32), snr.astype(jnp.float32)
    return LayerStatistics(jnp.mean(sigma), jnp.max(sigma), jnp.mean(snr), jnp.max(snr))
