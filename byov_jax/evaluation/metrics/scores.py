"""Scores of predicted probabilities: accuracy, likelihood, and the Brier score with its decomposition."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics import compensated_sum
from byov_jax.evaluation.metrics.examples import Mask, examples


class BrierDecomposition(NamedTuple):
    """`Brier = uncertainty - resolution + reliability - 2 within_covariance`."""

    reliability: Float[Array, ""]
    resolution: Float[Array, ""]
    uncertainty: Float[Array, ""]
    within_covariance: Float[Array, ""]


def top_k(
    probs: Array | np.ndarray, labels: Array | np.ndarray, k: int, *, where: Mask = None
) -> Float[Array, ""]:
    """Top-k accuracy: the fraction of samples whose label is among the `k` most probable classes.

    Of equally probable classes the lower one comes first, as in argmax: exactly `k` classes count.

    Args:
      probs: [n, classes] probabilities.
      labels: [n] integers from 0 to `classes - 1`.
      k: from 1 to `classes`.
      where: [n] booleans, False for rows to leave out, which may hold anything; None for all rows. Inside
        jit the result is NaN if no row is left, or if one has an invalid label or probabilities.
    """
    checks.predictions(probs, labels, where=where)
    checks.integer("k", k, most=probs.shape[1])
    return _top_k(probs, labels, k, where)


def nll(probs: Array | np.ndarray, labels: Array | np.ndarray, *, where: Mask = None) -> Float[Array, ""]:
    """Negative log-likelihood of the labels in nats, `-mean_i log p_i[y_i]`.

    A probability of 0 counts as the smallest normal number of its dtype: 87.3 nats in float32.

    Args as in `top_k`.
    """
    checks.predictions(probs, labels, where=where)
    return _nll(probs, labels, where)


def brier(probs: Array | np.ndarray, labels: Array | np.ndarray, *, where: Mask = None) -> Float[Array, ""]:
    """Brier score `mean_i ||p_i - y_i||^2` with one-hot labels `y_i`: 0 is best, 2 is worst.

    Args as in `top_k`.
    """
    checks.predictions(probs, labels, where=where)
    return _brier(probs, labels, where)


def brier_decomposition(
    probs: Array | np.ndarray, labels: Array | np.ndarray, *, where: Mask = None
) -> BrierDecomposition:
    """Decompose the Brier score, with samples grouped by their predicted class `k`.

    With `d_k` the mean one-hot label and `m_k` the mean prediction of group `k`, `w_k` its fraction of the
    samples, and `b` the mean one-hot label of all:

        reliability       = mean_i ||p_i - d_k||^2              (0 is best)
        resolution        = sum_k w_k ||d_k - b||^2             (higher is better)
        uncertainty       = 1 - ||b||^2                         (a property of the labels)
        within_covariance = mean_i (p_i - m_k) . (y_i - d_k)    (information beyond the predicted class)

    Args as in `top_k`.
    """
    checks.predictions(probs, labels, where=where)
    return _brier_decomposition(probs, labels, where)


@jax.jit(static_argnames="k")
def _top_k(probs, labels, k, where):
    rows = examples(probs, labels, where)
    return rows.mean(is_in_top_k(k, rows.probs, rows.labels))


@jax.jit
def _nll(probs, labels, where):
    rows = examples(probs, labels, where)
    return rows.mean(per_example_nll(rows.probs, rows.labels))


@jax.jit
def _brier(probs, labels, where):
    rows = examples(probs, labels, where)
    return rows.mean(per_example_brier(rows.probs, rows.labels))


@jax.jit
def _brier_decomposition(probs, labels, where):
    rows = examples(probs, labels, where)
    probs, labels, classes = rows.probs, rows.labels, rows.probs.shape[1]
    predicted = jnp.argmax(probs, axis=1)
    confusion = confusion_matrix(probs, labels, rows.weighted(jnp.ones_like(probs[:, 0]))).value
    prob_sums = compensated_sum.segment_sum(rows.weighted(probs), predicted, classes).value
    samples = jnp.sum(confusion, axis=1, keepdims=True)
    d, m = safe_divide(confusion, samples), safe_divide(prob_sums, samples)
    y = jax.nn.one_hot(labels, classes, dtype=probs.dtype)
    reliability = rows.mean(jnp.sum(jnp.square(probs - d[predicted]), axis=1))
    within = rows.mean(jnp.sum((probs - m[predicted]) * (y - d[predicted]), axis=1))
    resolution, uncertainty = rows.or_nan(resolution_and_uncertainty(confusion))
    return BrierDecomposition(reliability, resolution, uncertainty, within)


def is_in_top_k(k: int, probs: Float[Array, "n classes"], labels: Int[Array, "n"]) -> Float[Array, "n"]:
    """Return 1 where the label is among the `k` most probable classes; ties go to the lower class."""
    label_prob = label_probability(probs, labels)[:, None]
    lower = jnp.arange(probs.shape[1])[None] < labels[:, None]
    ahead = jnp.where(lower, probs >= label_prob, probs > label_prob)
    # On a CPU `any` is three times as fast as a count.
    inside = ~jnp.any(ahead, axis=1) if k == 1 else jnp.sum(ahead, axis=1) < k
    return inside.astype(probs.dtype)


def per_example_nll(probs: Float[Array, "n classes"], labels: Int[Array, "n"]) -> Float[Array, "n"]:
    """Compute `-log p_i[y_i]`."""
    return -jnp.log(jnp.maximum(label_probability(probs, labels), jnp.finfo(probs.dtype).tiny))


def per_example_brier(probs: Float[Array, "n classes"], labels: Int[Array, "n"]) -> Float[Array, "n"]:
    """Compute `||p_i - y_i||^2`."""
    return jnp.sum(jnp.square(probs - jax.nn.one_hot(labels, probs.shape[1], dtype=probs.dtype)), axis=1)


def label_probability(probs: Float[Array, "n classes"], labels: Int[Array, "n"]) -> Float[Array, "n"]:
    """Return `p_i[y_i]`."""
    return jnp.take_along_axis(probs, labels[:, None], axis=1)[:, 0]


def confusion_matrix(
    probs: Float[Array, "n classes"], labels: Int[Array, "n"], weights: Float[Array, "n"]
) -> compensated_sum.Sum:
    """Return the total weight per predicted class (row) and label (column), [classes, classes]."""
    classes = probs.shape[1]
    cell = jnp.argmax(probs, axis=1) * classes + labels
    return compensated_sum.segment_sum(weights, cell, classes * classes).reshape(classes, classes)


def resolution_and_uncertainty(
    confusion: Float[Array, "classes classes"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute the two parts of the Brier score that depend on the confusion matrix alone."""
    samples = jnp.sum(confusion, axis=1, keepdims=True)
    fraction = samples / jnp.sum(samples)
    d = safe_divide(confusion, samples)
    b = jnp.sum(fraction * d, axis=0, keepdims=True)
    resolution = jnp.sum(fraction[:, 0] * jnp.sum(jnp.square(d - b), axis=1))
    return resolution, 1.0 - jnp.sum(jnp.square(b))


def safe_divide(part: Float[Array, "..."], whole: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute `part / whole`, and 0 where `whole` is 0: a mean over no samples."""
    return jnp.where(whole == 0, 0.0, part / jnp.where(whole == 0, 1.0, whole))
