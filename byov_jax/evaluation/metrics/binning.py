"""Calibration errors: confidence against accuracy, in bins of equal width or of equal mass.

The confidence of a sample is its highest probability. Of equally probable classes the lower one is predicted.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics import compensated_sum
from byov_jax.evaluation.metrics.scores import is_in_top_k, safe_divide


class ReliabilityBins(NamedTuple):
    """The bins of a reliability diagram; a bin without samples holds zeros.

    Attributes:
      samples: number of samples, or their total weight.
      confidence: mean confidence of these samples.
      accuracy: fraction of them that is predicted correctly.
    """

    samples: Float[Array, "bins"]
    confidence: Float[Array, "bins"]
    accuracy: Float[Array, "bins"]


def reliability_bins(
    probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15
) -> ReliabilityBins:
    """Bin samples by confidence into `(i / bins, (i + 1) / bins]`; confidence 0 is in the first bin.

    Args:
      probs: [n, classes] probabilities.
      labels: [n] integers from 0 to `classes - 1`.
      bins: number of bins of equal width.
    """
    probs, labels = checks.predictions(probs, labels)
    checks.integer("bins", bins)
    return _equal_width(probs, labels, bins)


def ece(probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15) -> Float[Array, ""]:
    """Expected calibration error `sum_b n_b / n |accuracy_b - confidence_b|` (Guo et al., 2017).

    Args as in `reliability_bins`.
    """
    return mean_gap(reliability_bins(probs, labels, bins))


def mce(probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15) -> Float[Array, ""]:
    """Maximum calibration error `max_b |accuracy_b - confidence_b|` over bins with samples.

    Args as in `reliability_bins`.
    """
    return max_gap(reliability_bins(probs, labels, bins))


def adaptive_ece(probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15) -> Float[Array, ""]:
    """Expected calibration error in bins of equal mass (Nguyen and O'Connor, 2015).

    Samples are sorted by confidence, ties in the given order, and cut into bins whose sizes differ by at most
    one, the larger ones first. With fewer samples than bins, each sample is a bin.

    Args as in `reliability_bins`.
    """
    probs, labels = checks.predictions(probs, labels)
    checks.integer("bins", bins)
    return mean_gap(_equal_mass(probs, labels, bins))


@jax.jit(static_argnames="bins")
def _equal_width(probs, labels, bins):
    confidence = jnp.max(probs, axis=1)
    return _bins(confidence, is_in_top_k(1, probs, labels), bin_index(confidence, bins), bins)


@jax.jit(static_argnames="bins")
def _equal_mass(probs, labels, bins):
    confidence = jnp.max(probs, axis=1)
    order = jnp.argsort(confidence, stable=True)
    size, larger = divmod(len(probs), bins)
    index = np.repeat(np.arange(bins), np.where(np.arange(bins) < larger, size + 1, size))
    return _bins(confidence[order], is_in_top_k(1, probs, labels)[order], jnp.asarray(index), bins)


def _bins(confidence, correct, index, bins: int) -> ReliabilityBins:
    inside = index[:, None] == jnp.arange(bins)[None]
    columns = (jnp.ones_like(correct), confidence, correct)
    return bins_from_sums(
        *(compensated_sum.total(jnp.where(inside, values[:, None], 0.0)).value for values in columns)
    )


def bins_from_sums(
    samples: Float[Array, "bins"], confidence: Float[Array, "bins"], correct: Float[Array, "bins"]
) -> ReliabilityBins:
    """Compute the bins from each bin's sums of weight, of confidence and of correct predictions."""
    return ReliabilityBins(samples, safe_divide(confidence, samples), safe_divide(correct, samples))


@jax.jit
def mean_gap(bins: ReliabilityBins) -> Float[Array, ""]:
    """Compute `sum_b n_b / n |accuracy_b - confidence_b|`."""
    return jnp.sum(bins.samples * jnp.abs(bins.accuracy - bins.confidence)) / jnp.sum(bins.samples)


@jax.jit
def max_gap(bins: ReliabilityBins) -> Float[Array, ""]:
    """Compute `max_b |accuracy_b - confidence_b|`; bins without samples have gap 0."""
    return jnp.max(jnp.abs(bins.accuracy - bins.confidence))


def bin_index(confidence: Float[Array, "n"], bins: int) -> Int[Array, "n"]:
    """Return the index of the bin `(i / bins, (i + 1) / bins]` of each confidence.

    The edges are rounded to the dtype of the confidence, so that 0.6 lies on the edge 9 / 15 in any dtype.
    """
    inner = jnp.asarray(bin_edges(bins)[1:-1], confidence.dtype)
    return jnp.sum(confidence[:, None] > inner[None], axis=1)


def bin_edges(bins: int) -> Float[np.ndarray, "edges"]:
    """Return the `bins + 1` edges of bins of equal width."""
    return np.arange(bins + 1) / bins
