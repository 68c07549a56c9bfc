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
from byov_jax.evaluation.metrics.examples import Mask
from byov_jax.evaluation.metrics.scores import safe_divide
from byov_jax.evaluation.metrics.top_labels import TopLabels, top_labels


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
    probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15, *, where: Mask = None
) -> ReliabilityBins:
    """Bin samples by confidence into `(i / bins, (i + 1) / bins]`; confidence 0 is in the first bin.

    Args:
      probs: [n, classes] probabilities.
      labels: [n] integers from 0 to `classes - 1`.
      bins: number of bins of equal width.
      where: [n] booleans, False for rows to leave out, which may hold anything; None for all rows. Inside
        jit the result is NaN if no row is left, or if one has an invalid label or probabilities.
    """
    return _equal_width(_checked(probs, labels, bins, where), bins)


def ece(
    probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15, *, where: Mask = None
) -> Float[Array, ""]:
    """Expected calibration error `sum_b n_b / n |accuracy_b - confidence_b|` (Guo et al., 2017).

    Args as in `reliability_bins`.
    """
    return _ece(_checked(probs, labels, bins, where), bins)


def mce(
    probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15, *, where: Mask = None
) -> Float[Array, ""]:
    """Maximum calibration error `max_b |accuracy_b - confidence_b|` over bins with samples.

    Args as in `reliability_bins`.
    """
    return _mce(_checked(probs, labels, bins, where), bins)


def adaptive_ece(
    probs: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15, *, where: Mask = None
) -> Float[Array, ""]:
    """Expected calibration error in bins of equal mass (Nguyen and O'Connor, 2015).

    Samples are sorted by confidence, ties in the given order, and cut into bins whose sizes differ by at most
    one, the larger ones first. With fewer samples than bins, each sample is a bin.

    Args as in `reliability_bins`.
    """
    return _adaptive_ece(_checked(probs, labels, bins, where), bins)


def _checked(probs, labels, bins: int, where) -> TopLabels:
    checks.predictions(probs, labels, where=where)
    checks.integer("bins", bins)
    return top_labels(probs, labels, where)


@jax.jit(static_argnames="bins")
def _equal_width(top: TopLabels, bins: int) -> ReliabilityBins:
    index = jnp.where(top.counted, bin_index(top.confidence, bins), bins)
    return top.or_nan(_bins(top.confidence, top.correct, index, bins))


@jax.jit(static_argnames="bins")
def _ece(top: TopLabels, bins: int):
    return mean_gap(_equal_width(top, bins))


@jax.jit(static_argnames="bins")
def _mce(top: TopLabels, bins: int):
    return max_gap(_equal_width(top, bins))


@jax.jit(static_argnames="bins")
def _adaptive_ece(top: TopLabels, bins: int):
    order = jnp.argsort(jnp.where(top.counted, top.confidence, jnp.inf), stable=True)
    size, larger = jnp.divmod(jnp.sum(top.counted), bins)
    ends = jnp.arange(1, bins + 1) * size + jnp.minimum(jnp.arange(1, bins + 1), larger)
    index = jnp.sum(jnp.arange(len(order))[:, None] >= ends[None], axis=1)  # masked rows are in no bin
    return mean_gap(top.or_nan(_bins(top.confidence[order], top.correct[order], index, bins)))


def _bins(confidence, correct, index, bins: int) -> ReliabilityBins:
    """Sum up the rows of each bin; a row of index `bins` is in none."""
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


def mean_gap(bins: ReliabilityBins) -> Float[Array, ""]:
    """Compute `sum_b n_b / n |accuracy_b - confidence_b|`."""
    return jnp.sum(bins.samples * jnp.abs(bins.accuracy - bins.confidence)) / jnp.sum(bins.samples)


def max_gap(bins: ReliabilityBins) -> Float[Array, ""]:
    """Compute `max_b |accuracy_b - confidence_b|`; bins without samples have gap 0."""
    return jnp.max(jnp.abs(bins.accuracy - bins.confidence))


def bin_index(confidence: Float[Array | np.ndarray, "n"], bins: int) -> Int[Array, "n"]:
    """Return the index of the bin `(i / bins, (i + 1) / bins]` of each confidence.

    The edges are rounded to the dtype of the confidence, so that 0.6 lies on the edge 9 / 15 in any dtype.
    """
    inner = jnp.asarray(bin_edges(bins)[1:-1], confidence.dtype)
    return jnp.sum(confidence[:, None] > inner[None], axis=1)


def bin_edges(bins: int) -> Float[np.ndarray, "edges"]:
    """Return the `bins + 1` edges of bins of equal width."""
    return np.arange(bins + 1) / bins
