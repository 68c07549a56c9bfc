"""Calibration with bootstrap intervals, and the difference between two models on the same images.

Two models that are measured with the same resamples (`bootstrap.counts` of one key and one number of images)
are compared resample by resample: what they have in common, the choice of images, cancels.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation import bootstrap
from byov_jax.evaluation.bootstrap import Interval
from byov_jax.evaluation.metrics import Calibration, CalibrationReport, checks

Vector = Array | np.ndarray

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
"""The metrics that are compared: 1 where more is better, -1 where less is."""


class Measured(NamedTuple):
    """A classifier on some images.

    Attributes:
      report: every metric on the images as they are.
      replicates: those of `BETTER` on every resample of the images, [resamples] each.
    """

    report: CalibrationReport
    replicates: dict[str, Float[Array, "resamples"]]

    def intervals(self, level: float = 0.95) -> dict[str, Interval]:
        """The metrics of `BETTER` with their bootstrap intervals."""
        tails = (1 - level) / 2, (1 + level) / 2
        ends = np.quantile(np.stack([np.asarray(r) for r in self.replicates.values()], axis=1), tails, axis=0)
        values = (np.asarray(getattr(self.report, name)) for name in self.replicates)
        rows = zip(self.replicates, values, *ends, strict=True)
        return {name: Interval(value, low, high) for name, value, low, high in rows}


def measure(
    probs: Array | np.ndarray, labels: Array | np.ndarray, counts: Array | np.ndarray, bins: int = 15
) -> Measured:
    """Measures probabilities [n, classes] against labels [n].

    Args:
      probs: probabilities.
      labels: labels.
      counts: how often each resample holds each image, [resamples, n], from `bootstrap.counts`.
      bins: of the calibration errors.
    """
    if counts.ndim != 2 or counts.shape[1] != len(labels):
        raise ValueError(f"counts must be [resamples, {len(labels)}], got {counts.shape}")
    return _measure(*checks.predictions(probs, labels), jnp.asarray(counts), bins=bins)


def advantage(
    value: Any, replicates: Vector, baseline: Any, baseline_replicates: Vector, name: str
) -> Interval:
    """How much better than a baseline, in percentage points, with its interval: positive is better.

    Args:
      value: the metric called `name`.
      replicates: the same on every resample.
      baseline: the baseline's.
      baseline_replicates: on the same resamples.
      name: a key of `BETTER`.
    """
    if len(replicates) != len(baseline_replicates):
        raise ValueError(
            f"the two have {len(replicates)} and {len(baseline_replicates)} resamples: they are not the same"
        )
    sign = 100.0 * BETTER[name]
    difference = sign * (jnp.asarray(replicates) - jnp.asarray(baseline_replicates))
    return bootstrap.estimate(jnp.asarray(sign * (value - baseline)), difference)


@partial(jax.jit, static_argnames="bins")
def _measure(probs, labels, counts, *, bins: int) -> Measured:
    def report(weights) -> CalibrationReport:
        return Calibration.init(probs.shape[1], bins).update(probs, labels, weights).compute()

    def replicate(weights):
        found = report(weights)
        return {name: getattr(found, name) for name in BETTER}

    return Measured(report(None), jax.lax.map(replicate, counts, batch_size=100))
