"""Compensated summation: float32 numbers added with about 48 bits.

A plain float32 sum of thousands of equal numbers may be wrong in its fifth digit. Here a sum is a pair whose
low part holds what rounding took from the high part (Dekker, 1971). Derivatives are those of a plain sum.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

_BLOCK = 4096  # this many multiples of 1 / 4096 up to 1 add up exactly in the 24 bits of float32


class Sum(NamedTuple):
    """The number `high + low`; `psum` over devices may add the two parts separately."""

    high: Float[Array, "..."]
    low: Float[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        """The sum, rounded once."""
        return self.high + self.low

    def reshape(self, *shape: int) -> "Sum":
        """Reshape both parts."""
        return Sum(self.high.reshape(shape), self.low.reshape(shape))


def zeros(*shape: int) -> Sum:
    """Return sums of 0, in float32, or in float64 if JAX has it enabled."""
    zero = np.zeros(shape, jax.dtypes.canonicalize_dtype(float))
    return Sum(jax.device_put(zero), jax.device_put(zero))  # jnp.zeros and jnp.asarray would compile


def add(a: Sum, b: Sum) -> Sum:
    """Compute `a + b` in the dtype of `a`."""
    high, error = _two_sum(a.high, b.high.astype(a.high.dtype))
    return Sum(*_two_sum(high, a.low + b.low.astype(a.low.dtype) + error))


@jax.custom_jvp
def total(x: Float[Array, "n *rest"]) -> Sum:
    """Compute the sum along the first axis."""
    zero = jnp.zeros((), x.dtype)
    return Sum(*jax.lax.reduce(Sum(x, jnp.zeros_like(x)), Sum(zero, zero), add, dimensions=(0,)))


@total.defjvp
def _total_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return total(x), _exactly(jnp.sum(dx, axis=0))


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def segment_sum(values: Float[Array, "n *rest"], segment: Integer[Array, "n"], segments: int) -> Sum:
    """Sum the rows of each segment, [segments, *rest], for values of order 1; see `jax.ops.segment_sum`."""
    blocks = -(-len(values) // _BLOCK)
    if blocks == 1:
        return _block_sum(values, segment, segments)

    def in_blocks(x):
        padded = jnp.pad(x, ((0, blocks * _BLOCK - len(x)), *((0, 0),) * (x.ndim - 1)))
        return padded.reshape(blocks, _BLOCK, *x.shape[1:])

    def step(total, block):
        return add(total, _block_sum(block[0], block[1], segments)), None

    values, segment = in_blocks(values), in_blocks(segment)
    return jax.lax.scan(step, _block_sum(values[0], segment[0], segments), (values[1:], segment[1:]))[0]


@segment_sum.defjvp
def _segment_sum_jvp(segments, primals, tangents):
    (values, segment), dx = primals, tangents[0]
    return segment_sum(values, segment, segments), _exactly(jax.ops.segment_sum(dx, segment, segments))


def _exactly(x) -> Sum:
    return Sum(x, jnp.zeros_like(x))


def _block_sum(values, segment, segments: int) -> Sum:
    """Sum up to `_BLOCK` rows by segment, in coarse and fine parts, so that equal rows do not drift."""
    coarse = jnp.round(values * _BLOCK) / _BLOCK
    return Sum(*(jax.ops.segment_sum(part, segment, segments) for part in (coarse, values - coarse)))


def _two_sum(a, b):
    """Compute `a + b` rounded, and the exact rounding error (Knuth, 1969)."""
    s = a + b
    b_part = s - a
    return s, (a - (s - b_part)) + (b - b_part)
