"""Scores of predicted probabilities: accuracy, likelihood, and the Brier score with its parts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from byov_jax.evaluation.metrics import checks, compensated_sum


class BrierDecomposition(NamedTuple):
    """`Brier = uncertainty - resolution + reliability - 2 within_covariance`."""

    reliability: Float[Array, ""]
    resolution: Float[Array, ""]
    uncertainty: Float[Array, ""]
    within_covariance: Float[Array, ""]


def top_k(probs: Array | np.ndarray, labels: Array | np.ndarray, k: int) -> Float[Array, ""]:
    """The fraction of samples whose label is among the `k` most probable classes.

    Of equally probable classes the lower one comes first, as in argmax: `k` classes count, never more.

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
      k: from 1 to `classes`.
    """
    probs, labels = checks.predictions(probs, labels)
    checks.count("k", k, most=probs.shape[1])
    return _top_k(probs, labels, k)


def nll(probs: Array | np.ndarray, labels: Array | np.ndarray) -> Float[Array, ""]:
    """The negative log-likelihood of the labels in nats, `-mean_i log p_i[y_i]`.

    A probability of 0 counts as the smallest normal number of its dtype: 87.3 nats in float32.

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
    """
    return _nll(*checks.predictions(probs, labels))


def brier(probs: Array | np.ndarray, labels: Array | np.ndarray) -> Float[Array, ""]:
    """The Brier score `mean_i ||p_i - y_i||^2` with one-hot labels `y_i`: 0 is perfect, 2 is the worst.

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
    """
    return _brier(*checks.predictions(probs, labels))


def brier_decomposition(probs: Array | np.ndarray, labels: Array | np.ndarray) -> BrierDecomposition:
    """The parts of the Brier score when samples are grouped by the class `k` that they predict.

    With `d_k` the mean one-hot label and `m_k` the mean prediction of group `k`, `w_k` its share of the
    samples, and `b` the mean one-hot label of all:

        reliability       = mean_i ||p_i - d_k||^2              (0 is best)
        resolution        = sum_k w_k ||d_k - b||^2             (large is best)
        uncertainty       = 1 - ||b||^2                         (a property of the labels)
        within_covariance = mean_i (p_i - m_k) . (y_i - d_k)    (what is known beyond the predicted class)

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
    """
    return _brier_decomposition(*checks.predictions(probs, labels))


@jax.jit(static_argnames="k")
def _top_k(probs, labels, k):
    return compensated_sum.mean(label_in_top(k, probs, labels))


@jax.jit
def _nll(probs, labels):
    return compensated_sum.mean(nll_of_each(probs, labels))


@jax.jit
def _brier(probs, labels):
    return compensated_sum.mean(brier_of_each(probs, labels))


@jax.jit
def _brier_decomposition(probs, labels):
    predicted = jnp.argmax(probs, axis=1)
    label_sums = group_labels(probs, labels, jnp.ones_like(probs[:, 0])).value
    prob_sums = compensated_sum.grouped(probs, predicted, probs.shape[1]).value
    samples = jnp.sum(label_sums, axis=1, keepdims=True)
    d, m = ratio(label_sums, samples), ratio(prob_sums, samples)
    y = jax.nn.one_hot(labels, probs.shape[1], dtype=probs.dtype)
    reliability = compensated_sum.mean(jnp.sum(jnp.square(probs - d[predicted]), axis=1))
    within = compensated_sum.mean(jnp.sum((probs - m[predicted]) * (y - d[predicted]), axis=1))
    return BrierDecomposition(reliability, *resolution_and_uncertainty(label_sums), within)


def label_in_top(k: int, probs: Float[Array, "n classes"], labels: Int[Array, "n"]) -> Float[Array, "n"]:
    """1 where fewer than `k` classes beat the label; an equal one beats it if it is lower."""
    own = probability_of_label(probs, labels)[:, None]
    lower = jnp.arange(probs.shape[1])[None] < labels[:, None]
    rank = jnp.sum((probs > own) | ((probs == own) & lower), axis=1)
    return (rank < k).astype(probs.dtype)


def nll_of_each(probs: Float[Array, "n classes"], labels: Int[Array, "n"]) -> Float[Array, "n"]:
    """`-log p_i[y_i]`."""
    return -jnp.log(jnp.maximum(probability_of_label(probs, labels), jnp.finfo(probs.dtype).tiny))


def brier_of_each(probs: Float[Array, "n classes"], labels: Int[Array, "n"]) -> Float[Array, "n"]:
    """`||p_i - y_i||^2`."""
    return jnp.sum(jnp.square(probs - jax.nn.one_hot(labels, probs.shape[1], dtype=probs.dtype)), axis=1)


def probability_of_label(probs: Float[Array, "n classes"], labels: Int[Array, "n"]) -> Float[Array, "n"]:
    """`p_i[y_i]`."""
    return jnp.take_along_axis(probs, labels[:, None], axis=1)[:, 0]


def group_labels(
    probs: Float[Array, "n classes"], labels: Int[Array, "n"], weights: Float[Array, "n"]
) -> compensated_sum.Sum:
    """`[classes, classes]`: the weight of the samples by predicted class (the row) and label."""
    classes = probs.shape[1]
    flat = compensated_sum.grouped(weights, jnp.argmax(probs, axis=1) * classes + labels, classes * classes)
    return compensated_sum.Sum(*(part.reshape(classes, classes) for part in flat))


def resolution_and_uncertainty(
    label_sums: Float[Array, "classes classes"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The two parts of the Brier score that depend on the labels of each group alone."""
    samples = jnp.sum(label_sums, axis=1, keepdims=True)
    share = samples / jnp.sum(samples)
    d = ratio(label_sums, samples)
    b = jnp.sum(share * d, axis=0, keepdims=True)
    resolution = jnp.sum(share[:, 0] * jnp.sum(jnp.square(d - b), axis=1))
    return resolution, 1.0 - jnp.sum(jnp.square(b))


def ratio(part: Float[Array, "..."], whole: Float[Array, "..."]) -> Float[Array, "..."]:
    """`part / whole`, and 0 where there is nothing to divide: a mean over no samples."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 0.0)
