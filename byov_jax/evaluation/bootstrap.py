"""The percentile bootstrap (Efron, 1979): how far a number would move had the test set been drawn again."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32, Real


class Interval(NamedTuple):
    """A statistic and its bootstrap confidence interval, all of one shape.

    Attributes:
      value: the statistic of the samples themselves.
      low: the lower end.
      high: the upper end.
    """

    value: Float[Array, "*shape"]
    low: Float[Array, "*shape"]
    high: Float[Array, "*shape"]


def estimate(
    value: float | Real[Array | np.ndarray, "..."],
    replicates: Real[Array | np.ndarray, "..."],
    level: float = 0.95,
) -> Interval:
    """A statistic with the interval that its values on resamples give.

    Args:
      value: the statistic of the samples themselves, of any shape.
      replicates: its value on each resample, [repeats, *value.shape].
      level: the probability with which the interval is to contain the truth, in (0, 1).
    """
    if jnp.shape(value) != jnp.shape(replicates)[1:]:
        raise ValueError(
            f"replicates must be [repeats, *value.shape]; value has shape {jnp.shape(value)}, "
            f"replicates {jnp.shape(replicates)}"
        )
    low, high = interval(replicates, level)
    return Interval(jnp.asarray(value, low.dtype), low, high)


def interval(
    replicates: Real[Array | np.ndarray, "..."], level: float = 0.95
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The quantiles `(1 - level) / 2` and `(1 + level) / 2` over axis 0, interpolated linearly.

    A statistic that is undefined (NaN) on one resample has no interval: both ends are NaN.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be above 0 and below 1, got {level}")
    if jnp.ndim(replicates) == 0 or len(replicates) == 0:
        raise ValueError(f"replicates must be [repeats, ...] with repeats above 0, got {replicates.shape}")
    replicates = jnp.asarray(replicates)
    replicates = replicates.astype(jnp.promote_types(replicates.dtype, jnp.float32))
    low, high = jnp.quantile(
        replicates, jnp.array([(1 - level) / 2, (1 + level) / 2], replicates.dtype), axis=0
    )
    return low, high


def indices(key: Array, n: int, repeats: int) -> Int32[Array, "repeats n"]:
    """Which of `n` samples each resample holds: every entry uniform in 0 to `n - 1`, with replacement."""
    if n < 1 or repeats < 1:
        raise ValueError(f"n and repeats must be at least 1, got n={n} and repeats={repeats}")
    return jax.random.randint(key, (repeats, n), 0, n, jnp.int32)


def counts(key: Array, n: int, repeats: int) -> Float32[Array, "repeats n"]:
    """How often each of `n` samples occurs in the resamples that `indices` draws with the same arguments.

    Every row sums to `n`. With `values` [n], all means of resamples are one product: `counts @ values / n`.
    """
    return _counts(indices(key, n, repeats))


@jax.jit
def _counts(indices: Int32[Array, "repeats n"]) -> Float32[Array, "repeats n"]:
    return jax.vmap(lambda row: jnp.zeros(row.shape, jnp.float32).at[row].add(1.0))(indices)
