"""Calibration errors: confidence against accuracy, in bins of equal width or of equal mass.

The confidence of a sample is its highest probability. Of equally probable classes the lower one is predicted.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from byov_jax.evaluation.metrics import checks, compensated_sum
from byov_jax.evaluation.metrics.scores import label_in_top, ratio


class ReliabilityBins(NamedTuple):
    """What a reliability diagram shows, bin by bin; a bin without samples has zeros.

    Attributes:
      samples: how many samples, or how much weight, each bin holds.
      confidence: their mean confidence.
      accuracy: the share of them whose prediction is right.
    """

    samples: Float[Array, "bins"]
    confidence: Float[Array, "bins"]
    accuracy: Float[Array, "bins"]


def reliability_bins(
    probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15
) -> ReliabilityBins:
    """Samples, confidence and accuracy in bins `(i / bins, (i + 1) / bins]`; confidence 0 is in the first.

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
      bins: how many bins of equal width.
    """
    probs, labels = checks.predictions(probs, labels)
    checks.count("bins", bins)
    return _equal_width(probs, labels, bins)


def ece(probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15) -> Float[Array, ""]:
    """The expected calibration error `sum_b n_b / n |accuracy_b - confidence_b|` (Guo et al., 2017).

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
      bins: how many bins of equal width, as in `reliability_bins`.
    """
    return mean_gap(reliability_bins(probs, labels, bins))


def mce(probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15) -> Float[Array, ""]:
    """The maximum calibration error `max_b |accuracy_b - confidence_b|` over bins with samples.

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
      bins: how many bins of equal width, as in `reliability_bins`.
    """
    return max_gap(reliability_bins(probs, labels, bins))


def adaptive_ece(probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15) -> Float[Array, ""]:
    """The expected calibration error in bins of equal mass (Nguyen and O'Connor, 2015).

    Samples are sorted by confidence, equal ones in the given order, and cut into bins whose sizes differ by
    at most one, the larger ones first.

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
      bins: how many bins; with fewer samples than bins, each sample is a bin.
    """
    probs, labels = checks.predictions(probs, labels)
    checks.count("bins", bins)
    return mean_gap(_equal_mass(probs, labels, bins))


@jax.jit(static_argnames="bins")
def _equal_width(probs, labels, bins):
    confidence = jnp.max(probs, axis=1)
    return _bins(confidence, label_in_top(1, probs, labels), bin_of_each(confidence, bins), bins)


@jax.jit(static_argnames="bins")
def _equal_mass(probs, labels, bins):
    confidence = jnp.max(probs, axis=1)
    order = jnp.argsort(confidence, stable=True)
    size, larger = divmod(len(probs), bins)
    places = np.repeat(np.arange(bins), np.where(np.arange(bins) < larger, size + 1, size))
    return _bins(confidence[order], label_in_top(1, probs, labels)[order], jnp.asarray(places), bins)


def _bins(confidence, hits, places, bins: int) -> ReliabilityBins:
    inside = places[:, None] == jnp.arange(bins)[None]
    columns = (jnp.ones_like(hits), confidence, hits)
    return from_sums(
        *(compensated_sum.total(jnp.where(inside, values[:, None], 0.0)).value for values in columns)
    )


def from_sums(
    samples: Float[Array, "bins"], confidence: Float[Array, "bins"], hits: Float[Array, "bins"]
) -> ReliabilityBins:
    """Bins from the sums of weight, of confidence and of right predictions in each."""
    return ReliabilityBins(samples, ratio(confidence, samples), ratio(hits, samples))


@jax.jit
def mean_gap(bins: ReliabilityBins) -> Float[Array, ""]:
    """`sum_b n_b / n |accuracy_b - confidence_b|`."""
    return jnp.sum(bins.samples * jnp.abs(bins.accuracy - bins.confidence)) / jnp.sum(bins.samples)


@jax.jit
def max_gap(bins: ReliabilityBins) -> Float[Array, ""]:
    """`max_b |accuracy_b - confidence_b|`; bins without samples have gap 0."""
    return jnp.max(jnp.abs(bins.accuracy - bins.confidence))


def bin_of_each(confidence: Float[Array, "n"], bins: int) -> Int[Array, "n"]:
    """The bin `(i / bins, (i + 1) / bins]` of each confidence: the number of inner edges below it.

    The edges are rounded to the dtype of the confidence, so that 0.6 lies on the edge 9 / 15 in any dtype.
    """
    inner = jnp.asarray(edges(bins)[1:-1], confidence.dtype)
    return jnp.sum(confidence[:, None] > inner[None], axis=1)


def edges(bins: int) -> Float[np.ndarray, "edges"]:
    """The `bins + 1` edges of bins of equal width."""
    return np.arange(bins + 1) / bins
