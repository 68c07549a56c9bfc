"""Predictive uncertainty: entropy, and the disagreement between weight draws."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics.examples import are_probabilities, nan_if


def entropy(probs: Array | np.ndarray) -> Float[Array, "n"]:
    """Entropy `-sum_c p_i[c] log p_i[c]` of each prediction in nats, where `0 log 0 = 0`.

    Args:
      probs: [n, classes] probabilities. Inside jit, a row with invalid probabilities has entropy NaN.
    """
    checks.probabilities(probs, ("n", "classes"))
    return _entropy(probs)


def mutual_information(draws: Array | np.ndarray) -> Float[Array, "n"]:
    """Mutual information of label and weights in nats (BALD, Houlsby et al., 2011); 0 if all draws agree.

    It is the entropy of the mean prediction minus the mean entropy of the draws.

    Args:
      draws: [draws, n, classes] probabilities. Inside jit, an example with an invalid draw gives NaN.
    """
    checks.probabilities(draws, ("draws", "n", "classes"))
    return _mutual_information(draws)


def predictive_std(draws: Array | np.ndarray) -> Float[Array, "n"]:
    """Standard deviation over draws (ddof 0) of the probability of the class that their mean predicts.

    Args:
      draws: [draws, n, classes] probabilities. Inside jit, an example with an invalid draw gives NaN.
    """
    checks.probabilities(draws, ("draws", "n", "classes"))
    return _predictive_std(draws)


@jax.jit
def _entropy(probs):
    probs, factor = _nan_unless_probabilities(probs)
    return per_example_entropy(probs) * factor


@jax.jit
def _mutual_information(draws):
    draws, factor = _nan_unless_probabilities(draws)
    mean_entropy = jnp.mean(per_example_entropy(draws), axis=0)
    # Entropy is concave, so this is not negative but for rounding.
    information = jnp.maximum(per_example_entropy(jnp.mean(draws, axis=0)) - mean_entropy, 0.0)
    return information * jnp.prod(factor, axis=0)


@jax.jit
def _predictive_std(draws):
    draws, factor = _nan_unless_probabilities(draws)
    predicted = jnp.argmax(jnp.mean(draws, axis=0), axis=-1)
    variance = jnp.var(jnp.take_along_axis(draws, predicted[None, :, None], axis=2)[:, :, 0], axis=0)
    return standard_deviation(variance) * jnp.prod(factor, axis=0)


def _nan_unless_probabilities(probs):
    """Return `probs` as float32 or wider, and a factor per row that is NaN where they are invalid."""
    probs = checks.as_float(probs)
    return probs, nan_if(~are_probabilities(probs)).astype(probs.dtype)


def per_example_entropy(probs: Float[Array, "*rest classes"]) -> Float[Array, "*rest"]:
    """Compute `-sum_c p[c] log p[c]` along the last axis; NaN where a probability is negative.

    The derivative at a probability of 0, which is infinite, is that at the smallest normal number.
    """
    logs = jnp.log(jnp.maximum(probs, jnp.finfo(probs.dtype).tiny))
    return -jnp.sum(jnp.where(probs < 0, jnp.nan, probs * logs), axis=-1)


def standard_deviation(variance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Compute the square root of a variance, with derivative 0 where the variance is 0."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), jax.lax.stop_gradient(variance))
