"""What a posterior looks like, layer by layer: mean and maximum of sigma and of the signal-to-noise ratio."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from byov_jax.bayes import posterior
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.select import is_stacked, path_of, path_of_layer


class LayerStatistics(NamedTuple):
    """One parameter tensor's `sigma` and `snr = |mean| / sigma`: their mean and their maximum."""

    sigma_mean: Float[Array, ""]
    sigma_max: Float[Array, ""]
    snr_mean: Float[Array, ""]
    snr_max: Float[Array, ""]


@jax.jit
def layer_statistics(q: Posterior) -> dict[str, LayerStatistics]:
    """Statistics of every Bayesian tensor, by path, in its own compiled function: call it when you look.

    Layers that a scan stacks under `blocks` are told apart: `encoder/blocks/3/mlp/up/kernel`.
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
