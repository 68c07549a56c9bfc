"""Metrics of how well a score ranks samples: AUROC, AUPR and FPR95 for detection, and risk-coverage.

For detection, a sample is called shifted if its score is at or above a threshold; shifted ones are positive.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics import compensated_sum
from byov_jax.evaluation.metrics.examples import Mask, nan_if, times
from byov_jax.evaluation.metrics.scores import safe_divide
from byov_jax.evaluation.metrics.top_labels import TopLabels, top_labels


def auroc(
    inside: Array | np.ndarray,
    outside: Array | np.ndarray,
    *,
    inside_where: Mask = None,
    outside_where: Mask = None,
) -> Float[Array, ""]:
    """Probability that a shifted sample scores higher than an in-distribution one; ties count one half.

    These are not the `(labels, scores)` of scikit-learn: labels raise a ValueError.

    Args:
      inside: [n] floating-point scores of in-distribution samples.
      outside: [m] scores of shifted samples, which should be higher.
      inside_where: [n] booleans, False for samples to leave out, whose scores may be anything; None for all.
        Inside jit the result is NaN if no sample is left, or if the score of one is not finite.
      outside_where: [m] booleans, likewise.
    """
    _check(inside, outside, inside_where, outside_where)
    return _auroc(inside, outside, inside_where, outside_where)


def aupr(
    inside: Array | np.ndarray,
    outside: Array | np.ndarray,
    *,
    inside_where: Mask = None,
    outside_where: Mask = None,
) -> Float[Array, ""]:
    """Average precision `sum_t (recall_t - recall_(t-1)) precision_t` over falling distinct thresholds.

    Args as in `auroc`.
    """
    _check(inside, outside, inside_where, outside_where)
    return _aupr(inside, outside, inside_where, outside_where)


def fpr95(
    inside: Array | np.ndarray,
    outside: Array | np.ndarray,
    *,
    inside_where: Mask = None,
    outside_where: Mask = None,
) -> Float[Array, ""]:
    """False positive rate at the highest threshold whose recall is at least 95 %.

    Args as in `auroc`.
    """
    _check(inside, outside, inside_where, outside_where)
    return _fpr95(inside, outside, inside_where, outside_where)


_ORDER = "the arguments are the scores of in-distribution samples, then those of shifted ones"


def _check(inside, outside, inside_where, outside_where) -> None:
    for name, values, where in (("inside", inside, inside_where), ("outside", outside, outside_where)):
        if not jnp.issubdtype(values.dtype, jnp.inexact):
            raise ValueError(f"{name} must be floating-point scores, got {values.dtype}: {_ORDER}")
        checks.scores(name, values, where)
    if inside.shape == outside.shape and checks.is_concrete(inside) and checks.is_concrete(outside):
        inside, outside = np.unique(inside), np.unique(outside)
        if np.array_equal(inside, [0, 1]) and not np.isin(outside, [0, 1]).all():
            raise ValueError(
                f"inside has only the values 0 and 1, like labels: {_ORDER}; add 1 to both if they are scores"
            )


class _Ranking(NamedTuple):
    """Scores in ascending order; the first `size` of them count, and the rest are infinite."""

    scores: Float[Array, "n"]
    size: Int[Array, ""]
    finite: Bool[Array, ""]

    @property
    def counted(self) -> Bool[Array, "n"]:
        return jnp.arange(len(self.scores)) < self.size

    def at_or_above(self, thresholds: Float[Array, "m"]) -> Int[Array, "m"]:
        """Count the scores at or above each threshold."""
        return self.size - self.below(thresholds, "left")

    def below(self, thresholds: Float[Array, "m"], side: str) -> Int[Array, "m"]:
        """Count the scores below (`left`), or at or below (`right`), each threshold."""
        return jnp.searchsorted(self.scores, thresholds, side=side)


def _rankings(inside, outside, inside_where, outside_where) -> tuple[_Ranking, _Ranking]:
    dtype = jnp.promote_types(*(checks.as_float(scores).dtype for scores in (inside, outside)))
    return _ranking(inside, inside_where, dtype), _ranking(outside, outside_where, dtype)


def _ranking(scores, where, dtype) -> _Ranking:
    # A rank is constant almost everywhere: its derivative is 0, also where scores are equal.
    scores = jax.lax.stop_gradient(jnp.asarray(scores).astype(dtype))
    counted = jnp.ones(len(scores), bool) if where is None else jnp.asarray(where)
    finite = jnp.all(jnp.isfinite(scores) | ~counted)
    return _Ranking(jnp.sort(jnp.where(counted, scores, jnp.inf)), jnp.sum(counted), finite)


def _mean(values, over: _Ranking, other: _Ranking):
    """Compute the mean over the scores that count, NaN if there are none or they are not finite."""
    total = compensated_sum.total(jnp.where(over.counted, values, 0.0)).value
    valid = over.finite & other.finite & (over.size > 0) & (other.size > 0)
    return times(total / over.size.astype(values.dtype), nan_if(~valid))


@jax.jit
def _auroc(*scores):
    inside, outside = _rankings(*scores)
    ranks = (inside.below(outside.scores, side).astype(outside.scores.dtype) for side in ("left", "right"))
    return _mean(sum(ranks) / (2 * inside.size), outside, inside)


@jax.jit
def _aupr(*scores):
    # Every positive raises the recall by 1 / m at its own score, so the sum is a mean over positives.
    inside, outside = _rankings(*scores)
    hits, alarms = (ranking.at_or_above(outside.scores) for ranking in (outside, inside))
    return _mean(hits.astype(outside.scores.dtype) / (hits + alarms), outside, inside)


@jax.jit
def _fpr95(*scores):
    inside, outside = _rankings(*scores)
    threshold = outside.scores[outside.size // 20]  # the highest with recall k / m >= 19 / 20, in integers
    return _mean((inside.scores >= threshold).astype(inside.scores.dtype), inside, outside)


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


def risk_coverage(
    probs: Array | np.ndarray, labels: Array | np.ndarray, *, where: Mask = None
) -> RiskCoverage:
    """Error rate among the most confident samples, at each of the coverages `1/n, 2/n, ..., 1`.

    Equally confident samples share their errors evenly: the mean over all of their orders. The derivative
    with respect to the probabilities is 0.

    Args:
      probs: [n, classes] probabilities.
      labels: [n] integers from 0 to `classes - 1`.
      where: [n] booleans, False for rows to leave out, which may hold anything; None for all rows. The curve
        of the others fills the first points, the rest repeat its last. Inside jit the result is NaN if no row
        is left, or if one has an invalid label or probabilities.
    """
    checks.predictions(probs, labels, where=where)
    return _risk_coverage(top_labels(probs, labels, where))


@jax.jit
def _risk_coverage(top: TopLabels):
    top = jax.lax.stop_gradient(top)
    n, dtype = len(top.confidence), top.confidence.dtype
    confidence = jnp.where(top.counted, top.confidence, -jnp.inf)
    order = jnp.argsort(confidence, descending=True)
    errors = jnp.where(top.counted, 1.0 - top.correct, 0.0)[order]
    changes = confidence[order][1:] != confidence[order][:-1]
    tie = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changes, dtype=jnp.int32)])
    sums = compensated_sum.segment_sum(jnp.stack([errors, jnp.ones_like(errors)], axis=1), tie, n).value
    counted = jnp.sum(top.counted)
    covered = jnp.minimum(jnp.arange(1, n + 1), counted).astype(dtype)
    risk = jnp.cumsum(safe_divide(sums[:, 0], sums[:, 1])[tie]) / covered
    area = compensated_sum.total(jnp.where(jnp.arange(n) < counted, risk, 0.0)).value / counted.astype(dtype)
    return top.or_nan(RiskCoverage(covered / counted, risk, area))
