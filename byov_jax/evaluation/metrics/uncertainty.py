"""Predictive uncertainty: entropy, and the disagreement between weight draws."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation import checks


def entropy(probs: Array | np.ndarray) -> Float[Array, "n"]:
    """Entropy `-sum_c p_i[c] log p_i[c]` of each prediction in nats, where `0 log 0 = 0`.

    Args:
      probs: [n, classes] probabilities.
    """
    return per_example_entropy(checks.probabilities(probs, ("n", "classes")))


def mutual_information(draws: Array | np.ndarray) -> Float[Array, "n"]:
    """Mutual information of label and weights in nats (BALD, Houlsby et al., 2011); 0 if all draws agree.

    It is the entropy of the mean prediction minus the mean entropy of the draws.

    Args:
      draws: [draws, n, classes] probabilities.
    """
    return _mutual_information(checks.probabilities(draws, ("draws", "n", "classes")))


def predictive_std(draws: Array | np.ndarray) -> Float[Array, "n"]:
    """Standard deviation over draws (ddof 0) of the probability of the class that their mean predicts.

    Args:
      draws: [draws, n, classes] probabilities.
    """
    return _predictive_std(checks.probabilities(draws, ("draws", "n", "classes")))


@jax.jit
def per_example_entropy(probs: Float[Array, "*rest classes"]) -> Float[Array, "*rest"]:
    """Compute `-sum_c p[c] log p[c]` along the last axis."""
    return jnp.sum(jax.scipy.special.entr(probs), axis=-1)


@jax.jit
def _mutual_information(draws):
    mean_entropy = jnp.mean(per_example_entropy(draws), axis=0)
    # Entropy is concave, so this is not negative but for rounding.
    return jnp.maximum(per_example_entropy(jnp.mean(draws, axis=0)) - mean_entropy, 0.0)


@jax.jit
def _predictive_std(draws):
    predicted = jnp.argmax(jnp.mean(draws, axis=0), axis=-1)
    return jnp.std(jnp.take_along_axis(draws, predicted[None, :, None], axis=2)[:, :, 0], axis=0)
