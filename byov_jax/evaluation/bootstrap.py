"""The percentile bootstrap (Efron, 1979): confidence intervals, and paired comparisons of two classifiers.

Two models that are measured on the same resamples (`counts` of one key and one number of images) are compared
resample by resample, so that the choice of images cancels.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32, Real

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics import Calibration, CalibrationReport

BETTER = {
    "top1": 1,
    "top5": 1,
    "nll": -1,
    "brier": -1,
    "reliability": -1,
    "resolution": 1,
    "ece": -1,
    "mce": -1,
    "adaptive_ece": -1,
    "aurc": -1,
}
"""The metrics that are compared: 1 where higher is better, -1 where lower is."""


class Interval(NamedTuple):
    """A statistic and the ends of its bootstrap confidence interval, all of one shape."""

    value: Float[Array, "*shape"]
    low: Float[Array, "*shape"]
    high: Float[Array, "*shape"]


class BootstrappedReport(NamedTuple):
    """The metrics of a classifier on some images, and on resamples of these images.

    Attributes:
      report: every metric on the images.
      replicates: the metrics of `BETTER` on each resample, [resamples] each.
    """

    report: CalibrationReport
    replicates: dict[str, Float[Array, "resamples"]]

    def intervals(self, level: float = 0.95) -> dict[str, Interval]:
        """Return the metrics of `BETTER` with their confidence intervals."""
        tails = (1 - level) / 2, (1 + level) / 2
        ends = np.quantile(np.stack([np.asarray(r) for r in self.replicates.values()], axis=1), tails, axis=0)
        values = (np.asarray(getattr(self.report, name)) for name in self.replicates)
        rows = zip(self.replicates, values, *ends, strict=True)
        return {name: Interval(value, low, high) for name, value, low, high in rows}


def indices(key: Array, n: int, repeats: int) -> Int32[Array, "repeats n"]:
    """Draw `repeats` resamples of `n` samples: indices from 0 to `n - 1`, with replacement."""
    if n < 1 or repeats < 1:
        raise ValueError(f"n and repeats must be at least 1, got n={n} and repeats={repeats}")
    return jax.random.randint(key, (repeats, n), 0, n, jnp.int32)


def counts(key: Array, n: int, repeats: int) -> Float32[Array, "repeats n"]:
    """Count how often each sample occurs in the resamples that `indices` draws with the same arguments.

    Every row sums to `n`. With `values` [n], the means of all resamples are `counts @ values / n`.
    """
    return _counts(indices(key, n, repeats))


@jax.jit
def _counts(indices: Int32[Array, "repeats n"]) -> Float32[Array, "repeats n"]:
    return jax.vmap(lambda row: jnp.zeros(row.shape, jnp.float32).at[row].add(1.0))(indices)


def interval(
    replicates: Real[Array | np.ndarray, "..."], level: float = 0.95
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Compute the quantiles `(1 - level) / 2` and `(1 + level) / 2` over axis 0, interpolated linearly.

    A statistic that is NaN on any resample has no interval: both ends are NaN.
    """
    checks.fraction("level", level)
    if jnp.ndim(replicates) == 0 or len(replicates) == 0:
        raise ValueError(f"replicates must be [repeats, ...] with repeats above 0, got {replicates.shape}")
    replicates = checks.as_float(replicates)
    low, high = jnp.quantile(
        replicates, jnp.array([(1 - level) / 2, (1 + level) / 2], replicates.dtype), axis=0
    )
    return low, high


def estimate(
    value: float | Real[Array | np.ndarray, "..."],
    replicates: Real[Array | np.ndarray, "..."],
    level: float = 0.95,
) -> Interval:
    """Return a statistic with its confidence interval.

    Args:
      value: the statistic of the samples themselves, of any shape.
      replicates: its value on each resample, [repeats, *value.shape].
      level: nominal coverage of the interval, in (0, 1).
    """
    if jnp.shape(value) != jnp.shape(replicates)[1:]:
        raise ValueError(
            f"replicates must be [repeats, *value.shape]; value has shape {jnp.shape(value)}, "
            f"replicates {jnp.shape(replicates)}"
        )
    low, high = interval(replicates, level)
    return Interval(jnp.asarray(value, low.dtype), low, high)


def calibration(
    probs: Array | np.ndarray, labels: Array | np.ndarray, counts: Array | np.ndarray, bins: int = 15
) -> BootstrappedReport:
    """Compute every metric of probabilities [n, classes] against labels [n], and its bootstrap replicates.

    Args:
      probs: probabilities.
      labels: integers from 0 to `classes - 1`.
      counts: how often each resample holds each image, [resamples, n], from `counts`.
      bins: number of bins of the calibration errors.
    """
    if counts.ndim != 2 or counts.shape[1] != len(labels):
        raise ValueError(f"counts must be [resamples, {len(labels)}], got {counts.shape}")
    checks.predictions(probs, labels)
    return _calibration(probs, labels, counts, bins=bins)


@partial(jax.jit, static_argnames="bins")
def _calibration(probs, labels, counts, *, bins: int) -> BootstrappedReport:
    def report(weights) -> CalibrationReport:
        return Calibration.init(probs.shape[1], bins).update(probs, labels, weights).compute()

    def replicate(weights):
        resampled = report(weights)
        return {name: getattr(resampled, name) for name in BETTER}

    return BootstrappedReport(report(None), jax.lax.map(replicate, counts, batch_size=100))


def gain(
    value: Any,
    replicates: Array | np.ndarray,
    baseline: Any,
    baseline_replicates: Array | np.ndarray,
    name: str,
) -> Interval:
    """Return the gain over a baseline in percentage points, positive is better, with its interval.

    Args:
      value: the metric called `name`.
      replicates: its value on each resample.
      baseline: the baseline's metric.
      baseline_replicates: its value on the same resamples.
      name: a key of `BETTER`.
    """
    if len(replicates) != len(baseline_replicates):
        raise ValueError(
            f"a gain needs the same resamples on both sides, got {len(replicates)} and "
            f"{len(baseline_replicates)} resamples"
        )
    sign = 100.0 * BETTER[name]
    difference = sign * (jnp.asarray(replicates) - jnp.asarray(baseline_replicates))
    return estimate(jnp.asarray(sign * (value - baseline)), difference)
