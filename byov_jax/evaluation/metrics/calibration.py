"""Every metric of a classifier in one pass over batches, in fixed memory, on any number of devices."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation.metrics import binning, checks, compensated_sum, scores
from byov_jax.evaluation.metrics.compensated_sum import Sum
from byov_jax.evaluation.metrics.scores import ratio
from byov_jax.evaluation.metrics.selective import RiskCoverage
from byov_jax.evaluation.metrics.uncertainty import entropy_of_each


class CalibrationReport(NamedTuple):
    """What `Calibration` knows about the samples that it has seen.

    Its fields equal the functions of the same names to rounding, except those that need all confidences in
    order: `adaptive_ece`, `aurc` and `risk_coverage`. These come from a histogram of 4096 cells or more, none
    wider than 1/2000, finest where confidence is high; a cell that is cut is split in proportion. They are
    exact while no cell holds more than one sample. In general, with `c` samples and `e` errors in a cell,

    - `adaptive_ece` is off by at most `2 / n` times the sum over boundaries of `e (c - e) / c + c / 8000` of
      the cell that each of them cuts;
    - `aurc` is off by at most `1 / n` times the sum over all cells of
      `e (c - e) / c (1 / (m + 1) + ... + 1 / (m + c))`, where `m` samples are in cells of higher confidence.

    Attributes:
      samples: their number, or their total weight.
      top1: the share of right predictions.
      top5: the share of labels among the five most probable classes, or among all if there are fewer.
      nll: negative log-likelihood in nats.
      brier: Brier score, `uncertainty - resolution + reliability - 2 within_covariance`.
      reliability: distance of predictions to label frequencies, 0 is best.
      resolution: spread of the label frequencies over predicted classes, large is best.
      uncertainty: spread of the labels themselves.
      within_covariance: covariance of predictions and labels within predicted classes.
      ece: expected calibration error.
      mce: maximum calibration error.
      adaptive_ece: expected calibration error in bins of equal mass.
      entropy: mean entropy of the predictions in nats.
      aurc: area under the risk-coverage curve.
      reliability_bins: what a reliability diagram shows.
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
    """Sums over samples from which every metric follows.

        calibration = Calibration.init(classes=10)
        for probs, labels, mask in batches:
            calibration = calibration.update(probs, labels, mask)
        print(calibration.compute().ece)

    All leaves are plain sums, so `jax.lax.psum(calibration, axis)` merges devices. Methods can be jitted,
    scanned and mapped: over counts `[resamples, n]` of how often each resample holds each row,
    `jax.vmap(lambda counts: Calibration.init(10).update(probs, labels, counts).compute())` is a bootstrap.

    Attributes:
      top5: how many labels are among the five most probable classes.
      nll: sum of the negative log-likelihoods.
      brier: sum of the Brier scores.
      entropy: sum of the entropies.
      label_probs: sum of the probabilities of the labels.
      cell_samples: `[bins, cells]`: how many samples are in each cell of confidence.
      cell_confidence: `[bins, cells]`: sum of their confidences.
      cell_hits: `[bins, cells]`: how many of their predictions are right.
      group_labels: `[classes, classes]`: how often a label comes with a predicted class (the row).
      group_probs: `[classes, classes]`: sum of the probabilities by predicted class (the row).
    """

    top5: Sum
    nll: Sum
    brier: Sum
    entropy: Sum
    label_probs: Sum
    cell_samples: Sum
    cell_confidence: Sum
    cell_hits: Sum
    group_labels: Sum
    group_probs: Sum

    @staticmethod
    def init(classes: int, bins: int = 15) -> "Calibration":
        """No samples yet: of `classes` classes, for calibration errors in `bins` bins."""
        checks.count("classes", classes, least=2)
        checks.count("bins", bins)
        cells, groups = (bins, -(-4096 // bins)), (classes, classes)
        return Calibration(
            *(compensated_sum.zeros(*shape) for shape in [()] * 5 + [cells] * 3 + [groups] * 2)
        )

    def update(
        self, probs: Array | np.ndarray, labels: Array | np.ndarray, weights: Array | np.ndarray | None = None
    ) -> "Calibration":
        """Adds a batch.

        Args:
          probs: `[n, classes]` probabilities.
          labels: `[n]` integers from 0 to `classes - 1`.
          weights: None, or `[n]`: a mask that is False for padding, or weights that are not negative. Rows of
            weight 0 may hold anything, NaN and impossible labels included.
        """
        probs, labels = checks.predictions(probs, labels, weights)
        classes = self.group_labels.high.shape[-1]
        if probs.shape[1] != classes:
            raise ValueError(f"probs must have {classes} classes as in init, got {probs.shape[1]}")
        weights = jnp.ones(len(probs)) if weights is None else jnp.asarray(weights)
        return self.merge(_of_batch(self, probs, labels, weights.astype(probs.dtype)))

    def merge(self, other: "Calibration") -> "Calibration":
        """The samples of both."""
        for mine, theirs in zip(self, other, strict=True):
            if mine.high.shape != theirs.high.shape:
                raise ValueError(
                    f"only accumulators of the same classes and bins can be merged, got sums of shape "
                    f"{mine.high.shape} and {theirs.high.shape}"
                )
        return _merge(self, other)

    def compute(self) -> CalibrationReport:
        """Every metric of the samples so far; without samples an error, and NaN inside jit."""
        if checks.known(self.cell_samples.high) and not np.any(np.asarray(self.cell_samples.high)):
            raise ValueError("there are no metrics of 0 samples: update with a batch first")
        return _report(self)


@jax.jit
def _merge(a: Calibration, b: Calibration) -> Calibration:
    return Calibration(*(compensated_sum.add(mine, theirs) for mine, theirs in zip(a, b, strict=True)))


@jax.jit
def _of_batch(like: Calibration, probs, labels, weights) -> Calibration:
    """The sums of one batch, in the shapes of `like`."""

    def weighted(values):
        weight = weights.reshape(-1, *(1,) * (values.ndim - 1))
        return jnp.where(weight > 0, weight * values, 0.0)  # not a product alone: 0 * NaN is NaN

    classes, (bins, cells) = probs.shape[1], like.cell_samples.high.shape
    of_each = (
        scores.label_in_top(min(5, classes), probs, labels),
        scores.nll_of_each(probs, labels),
        scores.brier_of_each(probs, labels),
        entropy_of_each(probs),
        scores.probability_of_label(probs, labels),
    )
    top5, nll, brier, entropy, label_probs = (compensated_sum.total(weighted(values)) for values in of_each)
    confidence, ones = jnp.max(probs, axis=1), jnp.ones_like(probs[:, 0])
    cell = _cell_of_each(confidence, bins, cells)

    def histogram(values):
        return Sum(
            *(
                part.reshape(bins, cells)
                for part in compensated_sum.grouped(weighted(values), cell, bins * cells)
            )
        )

    return Calibration(
        top5,
        nll,
        brier,
        entropy,
        label_probs,
        histogram(ones),
        histogram(confidence),
        histogram(scores.label_in_top(1, probs, labels)),
        scores.group_labels(probs, labels, weighted(ones)),
        compensated_sum.grouped(weighted(probs), jnp.argmax(probs, axis=1), classes),
    )


def _cell_of_each(confidence, bins: int, cells: int):
    """The cell of each confidence: its bin, and a place in it that is finest at the upper end.

    Confident classifiers have most samples just below 1, where cells get as narrow as 1e-6.
    """
    place = binning.bin_of_each(confidence, bins)
    upper = jnp.asarray(binning.edges(bins)[1:], confidence.dtype)[place]
    below = jnp.clip((upper - confidence) * bins, 0.0, 1.0)
    return place * cells + jnp.clip((cells * (1.0 - jnp.sqrt(below))).astype(jnp.int32), 0, cells - 1)


@jax.jit
def _report(state: Calibration) -> CalibrationReport:
    cells = (state.cell_samples.value, state.cell_confidence.value, state.cell_hits.value)
    bins = binning.from_sums(*(jnp.sum(values, axis=1) for values in cells))
    samples = jnp.sum(bins.samples)
    brier, label_probs = state.brier.value / samples, state.label_probs.value / samples
    label_sums, prob_sums = state.group_labels.value, state.group_probs.value
    resolution, uncertainty = scores.resolution_and_uncertainty(label_sums)
    # With d_k and m_k the mean label and prediction of group k: sum_k w_k d_k . m_k and sum_k w_k d_k . d_k.
    d = ratio(label_sums, jnp.sum(label_sums, axis=1, keepdims=True))
    d_m, d_d = (jnp.sum(jnp.sum(d * group_sums, axis=1)) / samples for group_sums in (prob_sums, label_sums))
    p_p = brier + 2.0 * label_probs - 1.0
    curve = _risk_coverage(state.cell_samples.value, state.cell_hits.value, samples)
    return CalibrationReport(
        samples=samples,
        top1=jnp.sum(state.cell_hits.value) / samples,
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


def _adaptive_ece(weight, confidence, hits, samples) -> Float[Array, ""]:
    """The expected calibration error in bins of equal mass, from sums over cells `[bins, cells]`."""
    bins = len(weight)
    # As numpy.array_split cuts: the first bins have one more where the samples do not divide evenly.
    size = jnp.floor(samples / bins)
    boundary = jnp.arange(1, bins).astype(weight.dtype)
    boundary = boundary * size + jnp.minimum(boundary, samples - bins * size)
    weight, gap = weight.reshape(-1), (confidence - hits).reshape(-1)
    ends = jnp.stack([jnp.zeros_like(samples), jnp.sum(gap)])
    cumulative = jnp.concatenate([ends[:1], _cumulative(gap, weight, boundary), ends[1:]])
    return jnp.sum(jnp.abs(jnp.diff(cumulative))) / samples


def _risk_coverage(weight, hits, samples) -> RiskCoverage:
    """The risk at 100 coverages and its area, from sums over cells `[bins, cells]`."""
    weight, errors = weight.reshape(-1), (weight - hits).reshape(-1)
    all_errors = jnp.sum(errors)
    more_confident = jnp.maximum(samples - jnp.cumsum(weight), 0.0)
    their_errors = all_errors - jnp.cumsum(errors)
    # The errors of a cell are spread evenly over its samples, as over samples of equal confidence.
    spread = their_errors - more_confident * ratio(errors, weight)
    area = jnp.sum(errors + spread * _harmonic(more_confident, weight)) / samples
    coverage = jnp.arange(1, 101).astype(weight.dtype) / 100.0
    covered = coverage * samples
    risk = (all_errors - _cumulative(errors, weight, samples - covered)) / covered
    return RiskCoverage(coverage, jnp.clip(risk, 0.0, 1.0), area)


def _cumulative(values: Float[Array, "cells"], weight: Float[Array, "cells"], at: Float[Array, "m"]):
    """The sum of the values up to cumulative weight `at`; a cell that is cut counts in proportion."""
    ends = jnp.cumsum(weight)
    cell = jnp.minimum(jnp.searchsorted(ends, at, side="left"), len(weight) - 1)
    left_out = jnp.clip(ratio(ends[cell] - at, weight[cell]), 0.0, 1.0)
    return jnp.cumsum(values)[cell] - left_out * values[cell]


def _harmonic(start: Float[Array, "cells"], length: Float[Array, "cells"]) -> Float[Array, "cells"]:
    """`1 / (start + 1) + ... + 1 / (start + length)`, also for weights that are not whole.

    Four terms and an asymptotic series: differences of digamma would lose all digits after many samples.
    """
    terms = sum(length / ((start + i) * (start + length + i)) for i in range(1, 5))
    first, last = (1.0 / jnp.square(start + end + 4.5) for end in (0.0, length))
    tail = sum(c * (last**i - first**i) for i, c in ((1, 1 / 24), (2, -7 / 960), (3, 31 / 8064)))
    return terms + jnp.log1p(length / (start + 4.5)) + tail
