"""How well a score tells shifted inputs from familiar ones: areas and error rates over all thresholds.

A sample is called shifted when its score is at or above a threshold. Shifted samples are the positives.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation.metrics import checks, compensated_sum


def auroc(inside: Array | np.ndarray, outside: Array | np.ndarray) -> Float[Array, ""]:
    """The probability that a shifted sample scores higher than a familiar one, a tie counting one half.

    Args:
      inside: `[n]` scores of familiar samples.
      outside: `[m]` scores of shifted samples, which should be higher.
    """
    return _auroc(*_scores(inside, outside))


def aupr(inside: Array | np.ndarray, outside: Array | np.ndarray) -> Float[Array, ""]:
    """The average precision `sum_t (recall_t - recall_(t-1)) precision_t` over falling distinct thresholds.

    Args:
      inside: `[n]` scores of familiar samples.
      outside: `[m]` scores of shifted samples, which should be higher.
    """
    return _aupr(*_scores(inside, outside))


def fpr95(inside: Array | np.ndarray, outside: Array | np.ndarray) -> Float[Array, ""]:
    """The share of familiar samples called shifted when at least 95 % of the shifted ones are.

    Of the thresholds that find 95 % or more, the highest counts: it has the fewest false alarms.

    Args:
      inside: `[n]` scores of familiar samples.
      outside: `[m]` scores of shifted samples, which should be higher.
    """
    return _fpr95(*_scores(inside, outside))


@jax.jit
def _auroc(inside, outside):
    below, at_or_below = (_rank(inside, outside, side).astype(outside.dtype) for side in ("left", "right"))
    return compensated_sum.mean((below + at_or_below) / (2 * len(inside)))


@jax.jit
def _aupr(inside, outside):
    # Every positive raises the recall by 1 / m at its own score, so the sum is a mean over positives.
    hits, alarms = (len(scores) - _rank(scores, outside, "left") for scores in (outside, inside))
    return compensated_sum.mean(hits.astype(outside.dtype) / (hits + alarms).astype(outside.dtype))


@jax.jit
def _fpr95(inside, outside):
    needed = -(-19 * len(outside) // 20)  # the smallest k with k / m >= 0.95, in whole numbers
    threshold = jnp.sort(outside)[len(outside) - needed]
    return jnp.sum(inside >= threshold).astype(inside.dtype) / len(inside)


def _rank(scores, thresholds, side: str):
    """How many scores lie below (`left`), or at or below (`right`), each threshold."""
    return jnp.searchsorted(jnp.sort(scores), thresholds, side=side)


def _scores(inside, outside) -> tuple[Float[Array, "n"], Float[Array, "m"]]:
    inside, outside = checks.scores("inside", inside), checks.scores("outside", outside)
    dtype = jnp.promote_types(inside.dtype, outside.dtype)
    return inside.astype(dtype), outside.astype(dtype)
