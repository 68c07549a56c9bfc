"""Selective prediction: how many errors remain when the least confident samples are left out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation.metrics import checks, compensated_sum
from byov_jax.evaluation.metrics.scores import label_in_top, ratio


class RiskCoverage(NamedTuple):
    """The risk-coverage curve (Geifman and El-Yaniv, 2017).

    Attributes:
      coverage: rising shares of the samples, the most confident first; the last is 1.
      risk: the error rate among them.
      area: the mean risk over the coverages `1/n, 2/n, ..., 1` of n samples (AURC).
    """

    coverage: Float[Array, "points"]
    risk: Float[Array, "points"]
    area: Float[Array, ""]


def risk_coverage(probs: Array | np.ndarray, labels: Array | np.ndarray) -> RiskCoverage:
    """The error rate among the most confident samples, at each of the coverages `1/n, 2/n, ..., 1`.

    Equally confident samples share their errors evenly: the mean over the orders they could come in.

    Args:
      probs: `[n, classes]` probabilities.
      labels: `[n]` integers from 0 to `classes - 1`.
    """
    return _risk_coverage(*checks.predictions(probs, labels))


@jax.jit
def _risk_coverage(probs, labels):
    n, confidence = len(probs), jnp.max(probs, axis=1)
    order = jnp.argsort(confidence, descending=True)
    errors = 1.0 - label_in_top(1, probs, labels)[order]
    changes = jnp.diff(confidence[order]) != 0
    block = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changes, dtype=jnp.int32)])
    of_block = compensated_sum.grouped(jnp.stack([errors, jnp.ones_like(errors)], axis=1), block, n).value
    samples = jnp.arange(1, n + 1).astype(probs.dtype)
    risk = jnp.cumsum(ratio(of_block[:, 0], of_block[:, 1])[block]) / samples
    return RiskCoverage(samples / n, risk, compensated_sum.mean(risk))
