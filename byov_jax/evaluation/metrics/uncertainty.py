"""How uncertain predictions are: entropy, and what weight draws disagree about."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation.metrics import checks


def entropy(probs: Array | np.ndarray) -> Float[Array, "n"]:
    """The entropy `-sum_c p_i[c] log p_i[c]` of each prediction in nats, where `0 log 0 = 0`.

    Args:
      probs: `[n, classes]` probabilities.
    """
    return entropy_of_each(checks.probabilities(probs, ("n", "classes")))


def mutual_information(draws: Array | np.ndarray) -> Float[Array, "n"]:
    """What the draws disagree about, in nats: the entropy of their mean less the mean of their entropies.

    It is the mutual information of label and weights (BALD, Houlsby et al., 2011): 0 if all draws agree.

    Args:
      draws: `[draws, n, classes]` probabilities, one row of the first axis for each draw of the weights.
    """
    return _mutual_information(checks.probabilities(draws, ("draws", "n", "classes")))


def predictive_std(draws: Array | np.ndarray) -> Float[Array, "n"]:
    """The standard deviation over draws (ddof 0) of the probability of the class that their mean predicts.

    Args:
      draws: `[draws, n, classes]` probabilities, one row of the first axis for each draw of the weights.
    """
    return _predictive_std(checks.probabilities(draws, ("draws", "n", "classes")))


@jax.jit
def entropy_of_each(probs: Float[Array, "*rest classes"]) -> Float[Array, "*rest"]:
    """`-sum_c p[c] log p[c]` along the last axis."""
    return jnp.sum(jax.scipy.special.entr(probs), axis=-1)


@jax.jit
def _mutual_information(draws):
    disagreement = entropy_of_each(jnp.mean(draws, axis=0)) - jnp.mean(entropy_of_each(draws), axis=0)
    return jnp.maximum(disagreement, 0.0)  # entropy is concave, rounding is not


@jax.jit
def _predictive_std(draws):
    predicted = jnp.argmax(jnp.mean(draws, axis=0), axis=-1)
    return jnp.std(jnp.take_along_axis(draws, predicted[None, :, None], axis=2)[:, :, 0], axis=0)
