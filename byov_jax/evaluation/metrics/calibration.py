"""Every metric of a classifier, accumulated over batches in fixed memory, on any number of devices."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics import binning, compensated_sum, scores
from byov_jax.evaluation.metrics.compensated_sum import Sum
from byov_jax.evaluation.metrics.examples import examples, nan_if, times
from byov_jax.evaluation.metrics.ranking import RiskCoverage
from byov_jax.evaluation.metrics.scores import safe_divide
from byov_jax.evaluation.metrics.uncertainty import per_example_entropy


class CalibrationReport(NamedTuple):
    """The metrics of the samples that a `Calibration` has accumulated.

    The fields equal the functions of the same names up to rounding, except those that need all confidences
    in order: `adaptive_ece`, `aurc` and `risk_coverage`. These come from a histogram of at least 4096 cells,
    none wider than 1/2000, finest where confidence is high; a cell that is cut is split in proportion. They
    are exact while no cell holds more than one sample. In general, with `c` samples and `e` errors in a cell,

    - `adaptive_ece` is off by at most `2 / n` times the sum over bin boundaries of `e (c - e) / c + c / 8000`
      of the cell that each of them cuts;
    - `aurc` is off by at most `1 / n` times the sum over all cells of
      `e (c - e) / c (1 / (m + 1) + ... + 1 / (m + c))`, where `m` samples are in cells of higher confidence.

    Attributes:
      samples: number of samples, or their total weight.
      top1: accuracy.
      top5: fraction of labels among the five most probable classes, or among all if there are fewer.
      nll: negative log-likelihood in nats.
      brier: Brier score, `uncertainty - resolution + reliability - 2 within_covariance`.
      reliability: distance of predictions to label frequencies; 0 is best.
      resolution: variance of the label frequencies over predicted classes; higher is better.
      uncertainty: variance of the labels themselves.
      within_covariance: covariance of predictions and labels within predicted classes.
      ece: expected calibration error.
      mce: maximum calibration error.
      adaptive_ece: expected calibration error in bins of equal mass.
      entropy: mean entropy of the predictions in nats.
      aurc: area under the risk-coverage curve.
      reliability_bins: the reliability diagram.
      risk_coverage: the error rate among the most confident 1 %, 2 %, ..., 100 %.
    """

    samples: Float[Array, "..."]
    top1: Float[Array, "..."]
    top5: Float[Array, "..."]
    nll: Float[Array, "..."]
    brier: Float[Array, "..."]
    reliability: Float[Array, "..."]
    resolution: Float[Array, "..."]
    uncertainty: Float[Array, "..."]
    within_covariance: Float[Array, "..."]
    ece: Float[Array, "..."]
    mce: Float[Array, "..."]
    adaptive_ece: Float[Array, "..."]
    entropy: Float[Array, "..."]
    aurc: Float[Array, "..."]
    reliability_bins: binning.ReliabilityBins
    risk_coverage: RiskCoverage


class Calibration(NamedTuple):
    """Accumulator of the sums from which every metric follows.

        calibration = Calibration.init(classes=10)
        for probs, labels, mask in batches:
            calibration = calibration.update(probs, labels, mask)
        print(calibration.compute().ece)

    All leaves are plain sums, so `jax.lax.psum(calibration, axis)` merges devices. Methods can be jitted,
    scanned and mapped: over counts [resamples, n] of how often each resample holds each row,
    `jax.vmap(lambda counts: Calibration.init(10).update(probs, labels, counts).compute())` is a bootstrap.

    Attributes:
      top5: number of labels among the five most probable classes.
      nll: sum of the negative log-likelihoods.
      brier: sum of the Brier scores.
      entropy: sum of the entropies.
      label_probs: sum of the probabilities of the labels.
      cell_samples: number of samples in each confidence cell, [bins, cells].
      cell_confidence: sum of their confidences, [bins, cells].
      cell_correct: number of correct predictions among them, [bins, cells].
      confusion: number of samples by predicted class (row) and label (column), [classes, classes].
      prob_sums: sum of the probabilities by predicted class (row), [classes, classes].
    """

    top5: Sum
    nll: Sum
    brier: Sum
    entropy: Sum
    label_probs: Sum
    cell_samples: Sum
    cell_confidence: Sum
    cell_correct: Sum
    confusion: Sum
    prob_sums: Sum

    @staticmethod
    def init(classes: int, bins: int = 15) -> "Calibration":
        """Return an empty accumulator for `classes` classes and calibration errors in `bins` bins."""
        checks.integer("classes", classes, least=2)
        checks.integer("bins", bins)
        cells, pairs = (bins, -(-4096 // bins)), (classes, classes)
        return Calibration(*(compensated_sum.zeros(*shape) for shape in [()] * 5 + [cells] * 3 + [pairs] * 2))

    def update(
        self, probs: Array | np.ndarray, labels: Array | np.ndarray, weights: Array | np.ndarray | None = None
    ) -> "Calibration":
        """Add a batch.

        Args:
          probs: [n, classes] probabilities.
          labels: [n] integers from 0 to `classes - 1`.
          weights: None, or [n]: a mask that is False for padding, or non-negative weights. Rows of weight 0
            may hold anything, NaN and labels out of range included. Inside jit, a row that counts makes every
            sum NaN, for good, if its probabilities, label or weight are invalid.
        """
        checks.predictions(probs, labels, weights)
        classes = self.confusion.high.shape[-1]
        if probs.shape[1] != classes:
            raise ValueError(f"probs must have {classes} classes as in init, got {probs.shape[1]}")
        return _update(self, probs, labels, weights)

    def merge(self, other: "Calibration") -> "Calibration":
        """Return the accumulator of the samples of both."""
        for a, b in zip(self, other, strict=True):
            if a.high.shape != b.high.shape:
                raise ValueError(
                    f"only accumulators of the same classes and bins can be merged, got sums of shape "
                    f"{a.high.shape} and {b.high.shape}"
                )
        return _merge(self, other)

    def compute(self) -> CalibrationReport:
        """Compute every metric; without samples this raises ValueError, or gives NaN inside jit.

        Gradients pass through the probabilities, but not through the choice of a bin, a cell or a class.
        """
        if checks.is_concrete(self.cell_samples.high) and not np.any(np.asarray(self.cell_samples.high)):
            raise ValueError("no metrics of 0 samples: update with a batch first")
        return _report(self)


@jax.jit
def _update(state: Calibration, probs, labels, weights) -> Calibration:
    return _merge(state, _batch_sums(state, probs, labels, weights))


@jax.jit
def _merge(a: Calibration, b: Calibration) -> Calibration:
    return Calibration(*(compensated_sum.add(x, y) for x, y in zip(a, b, strict=True)))


def _batch_sums(like: Calibration, probs, labels, weights) -> Calibration:
    """Compute the sums of one batch, in the shapes of `like`; NaN if a row that counts is invalid."""
    rows = examples(probs, labels, weights)
    probs, labels, classes = rows.probs, rows.labels, rows.probs.shape[1]
    bins, cells = like.cell_samples.high.shape
    confidence, ones = jnp.max(probs, axis=1), jnp.ones_like(probs[:, 0])
    cell = _cell_index(confidence, bins, cells)

    def histogram(values):
        return compensated_sum.segment_sum(rows.weighted(values), cell, bins * cells).reshape(bins, cells)

    sums = Calibration(
        top5=rows.sum(scores.is_in_top_k(min(5, classes), probs, labels)),
        nll=rows.sum(scores.per_example_nll(probs, labels)),
        brier=rows.sum(scores.per_example_brier(probs, labels)),
        entropy=rows.sum(per_example_entropy(probs)),
        label_probs=rows.sum(scores.label_probability(probs, labels)),
        cell_samples=histogram(ones),
        cell_confidence=histogram(confidence),
        cell_correct=histogram(scores.is_in_top_k(1, probs, labels)),
        confusion=scores.confusion_matrix(probs, labels, rows.weighted(ones)),
        prob_sums=compensated_sum.segment_sum(rows.weighted(probs), jnp.argmax(probs, axis=1), classes),
    )
    return times(sums, nan_if(rows.invalid))


def _cell_index(confidence, bins: int, cells: int):
    """Return the cell of each confidence; the cells of a bin are finest at its upper end.

    Confident classifiers have most samples just below 1, where cells are as narrow as 1e-6.
    """
    index = binning.bin_index(confidence, bins)
    upper = jnp.asarray(binning.bin_edges(bins)[1:], confidence.dtype)[index]
    below = jnp.clip((upper - confidence) * bins, 0.0, 1.0)
    return index * cells + jnp.clip((cells * (1.0 - jnp.sqrt(below))).astype(jnp.int32), 0, cells - 1)


@jax.jit
def _report(state: Calibration) -> CalibrationReport:
    cells = (state.cell_samples.value, state.cell_confidence.value, state.cell_correct.value)
    bins = binning.bins_from_sums(*(jnp.sum(values, axis=1) for values in cells))
    samples = jnp.sum(bins.samples)
    brier, label_probs = state.brier.value / samples, state.label_probs.value / samples
    confusion, prob_sums = state.confusion.value, state.prob_sums.value
    resolution, uncertainty = scores.resolution_and_uncertainty(confusion)
    # With d_k and m_k the mean label and prediction of group k: sum_k w_k d_k . m_k and sum_k w_k d_k . d_k.
    d = safe_divide(confusion, jnp.sum(confusion, axis=1, keepdims=True))
    d_m, d_d = (jnp.sum(jnp.sum(d * sums, axis=1)) / samples for sums in (prob_sums, confusion))
    p_p = brier + 2.0 * label_probs - 1.0
    curve = _risk_coverage(state.cell_samples.value, state.cell_correct.value, samples)
    report = CalibrationReport(
        samples=samples,
        top1=jnp.sum(state.cell_correct.value) / samples,
        top5=state.top5.value / samples,
        nll=state.nll.value / samples,
        brier=brier,
        reliability=jnp.maximum(p_p - 2.0 * d_m + d_d, 0.0),
        resolution=resolution,
        uncertainty=uncertainty,
        within_covariance=label_probs - d_m,
        ece=binning.mean_gap(bins),
        mce=binning.max_gap(bins),
        adaptive_ece=_adaptive_ece(*cells, samples),
        entropy=state.entropy.value / samples,
        aurc=curve.area,
        reliability_bins=bins,
        risk_coverage=curve,
    )
    return times(report, nan_if(~(samples > 0)))


def _adaptive_ece(weight, confidence, correct, samples) -> Float[Array, ""]:
    """Compute the expected calibration error in bins of equal mass from sums over cells, [bins, cells]."""
    bins = len(weight)
    # As in numpy.array_split, the first bins have one sample more where the samples do not divide evenly.
    size = jnp.floor(samples / bins)
    boundary = jnp.arange(1, bins).astype(weight.dtype)
    boundary = boundary * size + jnp.minimum(boundary, samples - bins * size)
    weight, gap = weight.reshape(-1), (confidence - correct).reshape(-1)
    ends = jnp.stack([jnp.zeros_like(samples), jnp.sum(gap)])
    cumulative = jnp.concatenate([ends[:1], _cumulative(gap, weight, boundary), ends[1:]])
    return jnp.sum(jnp.abs(jnp.diff(cumulative))) / samples


def _risk_coverage(weight, correct, samples) -> RiskCoverage:
    """Compute the risk at 100 coverages, and its area, from sums over cells, [bins, cells]."""
    weight, errors = weight.reshape(-1), (weight - correct).reshape(-1)
    all_errors = jnp.sum(errors)
    weight_above = jnp.maximum(samples - jnp.cumsum(weight), 0.0)  # in cells of higher confidence
    errors_above = all_errors - jnp.cumsum(errors)
    # The errors of a cell are spread evenly over its samples, as over samples of equal confidence.
    spread = errors_above - weight_above * safe_divide(errors, weight)
    area = jnp.sum(errors + spread * _harmonic(weight_above, weight)) / samples
    coverage = jnp.arange(1, 101).astype(weight.dtype) / 100.0
    covered = coverage * samples
    risk = (all_errors - _cumulative(errors, weight, samples - covered)) / covered
    return RiskCoverage(coverage, jnp.clip(risk, 0.0, 1.0), area)


def _cumulative(values: Float[Array, "cells"], weight: Float[Array, "cells"], at: Float[Array, "m"]):
    """Sum the values up to cumulative weight `at`; a cell that is cut counts in proportion."""
    ends = jnp.cumsum(weight)
    cell = jnp.minimum(jnp.searchsorted(ends, at, side="left"), len(weight) - 1)
    excluded = jnp.clip(safe_divide(ends[cell] - at, weight[cell]), 0.0, 1.0)
    return jnp.cumsum(values)[cell] - excluded * values[cell]


def _harmonic(start: Float[Array, "cells"], length: Float[Array, "cells"]) -> Float[Array, "cells"]:
    """Compute `1 / (start + 1) + ... + 1 / (start + length)`, also for weights that are not integers.

    Four terms and an asymptotic series: differences of digamma would lose all digits after many samples.
    """
    terms = sum(length / ((start + i) * (start + length + i)) for i in range(1, 5))
    first, last = (1.0 / jnp.square(start + end + 4.5) for end in (0.0, length))
    tail = sum(c * (last**i - first**i) for i, c in ((1, 1 / 24), (2, -7 / 960), (3, 31 / 8064)))
    return terms + jnp.log1p(length / (start + 4.5)) + tail
