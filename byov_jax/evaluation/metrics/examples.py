"""The examples that a metric counts, and whether they are valid.

Inside jit, where nothing can be raised, a row that counts but is invalid makes the result NaN.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics import compensated_sum
from byov_jax.evaluation.metrics.compensated_sum import Sum

Mask = Array | np.ndarray | None
"""Which rows count, [n] booleans; None for all. The others may hold anything: NaN, or the label -1."""


class Examples(NamedTuple):
    """Predictions, labels, and the weights of the rows.

    Attributes:
      probs: [n, classes], float32 or wider. Rows that are not probabilities receive no gradient.
      labels: [n] int32, from 0 to `classes - 1` also where the given label is not.
      weights: [n], 0 where a row does not count; None if all rows count once.
      invalid: whether a row that counts has invalid probabilities, label or weight.
    """

    probs: Float[Array, "n classes"]
    labels: Int[Array, "n"]
    weights: Float[Array, "n"] | None
    invalid: Bool[Array, ""]

    @property
    def counted(self) -> Bool[Array, "n"]:
        """Which rows count."""
        return jnp.ones(len(self.probs), bool) if self.weights is None else self.weights > 0

    @property
    def total_weight(self) -> Float[Array, ""]:
        """The number of rows that count, or their total weight."""
        if self.weights is None:
            return jnp.asarray(len(self.probs), self.probs.dtype)
        return compensated_sum.total(self.weights).value

    def weighted(self, values: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
        """Multiply rows by their weights; rows that do not count give 0."""
        if self.weights is None:
            return values
        weight = self.weights.reshape(-1, *(1,) * (values.ndim - 1))
        return jnp.where(weight > 0, weight * values, 0.0)  # not a product alone: 0 * NaN is NaN

    def sum(self, values: Float[Array, "n"]) -> Sum:
        """Compute the weighted sum of one value per row."""
        return compensated_sum.total(self.weighted(values))

    def mean(self, values: Float[Array, "n"]) -> Float[Array, ""]:
        """Compute the weighted mean of one value per row, or NaN."""
        return self.or_nan(self.sum(values).value / self.total_weight)

    def or_nan(self, result: Any) -> Any:
        """Return the result, a tree, or NaN for all of it if a row is invalid or none counts."""
        return nan_if_invalid(result, self.invalid, self.counted)


def examples(probs: Any, labels: Any, weights: Any = None) -> Examples:
    """Prepare predictions for a metric, inside jit; `weights` is a mask, weights or None."""
    probs, labels = checks.as_float(probs), jnp.asarray(labels)
    if labels.dtype.itemsize < 4:  # the number of classes may not fit into 8 bits
        labels = labels.astype(jnp.int32)
    # Before the cast to 32 bits, which could turn an invalid label into a valid one.
    valid_label = (labels >= 0) & (labels < probs.shape[1])
    is_prediction = are_probabilities(probs)
    valid, counted = valid_label & is_prediction, True
    if weights is not None:
        weights = jnp.asarray(weights).astype(probs.dtype)
        valid, counted = valid & (weights > 0) & jnp.isfinite(weights), weights != 0
    return Examples(
        _with_gradient_where(probs, is_prediction),
        jnp.where(valid_label, labels, 0).astype(jnp.int32),
        weights,
        jnp.any(~valid & counted),
    )


def are_probabilities(probs: Float[Array, "*rest classes"]) -> Bool[Array, "*rest"]:
    """Return whether each row is non-negative and sums to 1 within the rounding errors of bfloat16."""
    tolerance = checks.tolerance(jnp.bfloat16)
    return (jnp.min(probs, axis=-1) >= 0) & (jnp.abs(jnp.sum(probs, axis=-1) - 1.0) <= tolerance)


def nan_if_invalid(result: Any, invalid: Bool[Array, ""], counted: Bool[Array, "n"]) -> Any:
    """Return the result, a tree, or NaN for all of it if a row is invalid or none counts."""
    return times(result, nan_if(invalid | ~jnp.any(counted)))


def nan_if(condition: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return a factor: NaN where the condition holds, 1 elsewhere."""
    return jnp.where(condition, jnp.nan, 1.0)


def times(tree: Any, factor: Float[Array, "..."]) -> Any:
    """Multiply every array by a factor, in its own dtype."""
    return jax.tree.map(lambda x: x * factor.astype(x.dtype), tree)


@jax.custom_jvp
def _with_gradient_where(probs: Array, keep: Array) -> Array:
    """Return `probs`; only rows in `keep` receive a gradient.

    A mask of the values alone would leave NaN gradients, 0 times NaN, and costs a pass over the array.
    """
    return probs


@_with_gradient_where.defjvp
def _with_gradient_where_jvp(primals, tangents):
    probs, keep = primals
    return _with_gradient_where(probs, keep), jnp.where(keep[:, None], tangents[0], 0.0)
