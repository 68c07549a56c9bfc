"""Metrics of how well a score ranks samples: AUROC, AUPR and FPR95 for detection, and risk-coverage.

For detection, a sample is called shifted if its score is at or above a threshold; shifted ones are positive.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics import compensated_sum
from byov_jax.evaluation.metrics.scores import is_in_top_k, safe_divide


def auroc(inside: Array | np.ndarray, outside: Array | np.ndarray) -> Float[Array, ""]:
    """Probability that a shifted sample scores higher than an in-distribution one; ties count one half.

    Args:
      inside: [n] scores of in-distribution samples.
      outside: [m] scores of shifted samples, which should be higher.
    """
    return _auroc(*_scores(inside, outside))


def aupr(inside: Array | np.ndarray, outside: Array | np.ndarray) -> Float[Array, ""]:
    """Average precision `sum_t (recall_t - recall_(t-1)) precision_t` over falling distinct thresholds.

    Args as in `auroc`.
    """
    return _aupr(*_scores(inside, outside))


def fpr95(inside: Array | np.ndarray, outside: Array | np.ndarray) -> Float[Array, ""]:
    """False positive rate at the highest threshold whose recall is at least 95 %.

    Args as in `auroc`.
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
    needed = -(-19 * len(outside) // 20)  # the smallest k with k / m >= 0.95, in integers
    threshold = jnp.sort(outside)[len(outside) - needed]
    return jnp.sum(inside >= threshold).astype(inside.dtype) / len(inside)


def _rank(scores, thresholds, side: str):
    """Count the scores below (`left`), or at or below (`right`), each threshold."""
    return jnp.searchsorted(jnp.sort(scores), thresholds, side=side)


def _scores(inside, outside) -> tuple[Float[Array, "n"], Float[Array, "m"]]:
    inside, outside = checks.scores("inside", inside), checks.scores("outside", outside)
    dtype = jnp.promote_types(inside.dtype, outside.dtype)
    return inside.astype(dtype), outside.astype(dtype)


class RiskCoverage(NamedTuple):
    """The risk-coverage curve of selective prediction (Geifman and El-Yaniv, 2017).

    Attributes:
      coverage: increasing fractions of the samples, the most confident first; the last is 1.
      risk: the error rate among them.
      area: the mean risk over the coverages `1/n, 2/n, ..., 1` of n samples (AURC).
    """

    coverage: Float[Array, "points"]
    risk: Float[Array, "points"]
    area: Float[Array, ""]


def risk_coverage(probs: Array | np.ndarray, labels: Array | np.ndarray) -> RiskCoverage:
    """Error rate among the most confident samples, at each of the coverages `1/n, 2/n, ..., 1`.

    Equally confident samples share their errors evenly: the mean over all of their orders.

    Args:
      probs: [n, classes] probabilities.
      labels: [n] integers from 0 to `classes - 1`.
    """
    return _risk_coverage(*checks.predictions(probs, labels))


@jax.jit
def _risk_coverage(probs, labels):
    n, confidence = len(probs), jnp.max(probs, axis=1)
    order = jnp.argsort(confidence, descending=True)
    errors = 1.0 - is_in_top_k(1, probs, labels)[order]
    changes = jnp.diff(confidence[order]) != 0
    tie = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changes, dtype=jnp.int32)])
    sums = compensated_sum.segment_sum(jnp.stack([errors, jnp.ones_like(errors)], axis=1), tie, n).value
    samples = jnp.arange(1, n + 1).astype(probs.dtype)
    risk = jnp.cumsum(safe_divide(sums[:, 0], sums[:, 1])[tie]) / samples
    return RiskCoverage(samples / n, risk, compensated_sum.mean(risk))
