"""Layerwise statistics of a posterior: mean and maximum of sigma and of the signal-to-noise ratio."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from byov_jax.bayes import posterior
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.select import is_stacked, path_of, path_of_layer


class LayerStatistics(NamedTuple):
    """Mean and maximum over one parameter tensor of `sigma` and `snr = |mean| / sigma`."""

    sigma_mean: Float[Array, ""]
    sigma_max: Float[Array, ""]
    snr_mean: Float[Array, ""]
    snr_max: Float[Array, ""]


@jax.jit
def layer_statistics(q: Posterior) -> dict[str, LayerStatistics]:
    """Return the statistics of every Bayesian tensor by path, in a compiled function separate from the step.

    Layers stacked by a scan under `blocks` have a path each: `encoder/blocks/3/mlp/up/kernel`.
    """
    sigma = jax.tree.map(lambda log_var: jnp.exp(0.5 * log_var), q.log_var)
    snr = jax.tree.leaves(posterior.snr(q))
    layers = {}
    for (keys, s), r in zip(jax.tree_util.tree_leaves_with_path(sigma), snr, strict=True):
        path = path_of(keys)
        if is_stacked(path):
            for depth in range(s.shape[0]):
                layers[path_of_layer(path, depth)] = _summary(s[depth], r[depth])
        else:
            layers[path] = _summary(s, r)
    return layers


def _summary(sigma, snr) -> LayerStatistics:
    sigma, snr = sigma.astype(jnp.float32), snr.astype(jnp.float32)
    return LayerStatistics(jnp.mean(sigma), jnp.max(sigma), jnp.mean(snr), jnp.max(snr))
