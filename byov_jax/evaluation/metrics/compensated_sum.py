"""Sums that do not drift: float32 numbers added as if with 48 bits.

A plain float32 sum of thousands of equal numbers may be wrong in its fifth digit. Here a sum is a pair whose
low part holds what rounding took from the high part (Dekker, 1971).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer


class Sum(NamedTuple):
    """The number `high + low`; Sums of two devices add element by element."""

    high: Float[Array, "..."]
    low: Float[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        """The sum, rounded once."""
        return self.high + self.low


def zeros(*shape: int) -> Sum:
    """The empty sum: float32, or float64 where JAX has it enabled."""
    return Sum(jnp.zeros(shape, float), jnp.zeros(shape, float))


def add(a: Sum, b: Sum) -> Sum:
    """`a + b`, in the dtype of `a`."""
    high, error = _two_sum(a.high, b.high.astype(a.high.dtype))
    return Sum(*_two_sum(high, a.low + b.low.astype(a.low.dtype) + error))


def mean(x: Float[Array, "n *rest"]) -> Float[Array, "*rest"]:
    """The mean along the first axis."""
    return total(x).value / len(x)


def total(x: Float[Array, "n *rest"]) -> Sum:
    """The sum along the first axis."""
    zero = jnp.zeros((), x.dtype)
    return Sum(*jax.lax.reduce(Sum(x, jnp.zeros_like(x)), Sum(zero, zero), add, dimensions=(0,)))


def grouped(values: Float[Array, "n *rest"], group: Integer[Array, "n"], groups: int) -> Sum:
    """The sums of the rows of each group, `[groups, *rest]`, for values of order 1."""
    blocks = -(-len(values) // _BLOCK)
    if blocks == 1:
        return _grouped(values, group, groups)

    def in_blocks(x):
        padded = jnp.pad(x, ((0, blocks * _BLOCK - len(x)), *((0, 0),) * (x.ndim - 1)))
        return padded.reshape(blocks, _BLOCK, *x.shape[1:])

    def step(so_far, block):
        return add(so_far, _grouped(block[0], block[1], groups)), None

    values, group = in_blocks(values), in_blocks(group)
    return jax.lax.scan(step, _grouped(values[0], group[0], groups), (values[1:], group[1:]))[0]


_BLOCK = 4096  # as many multiples of 1 / 4096 up to 1 add up exactly in the 24 bits of float32


def _grouped(values, group, groups: int) -> Sum:
    """The sums of up to `_BLOCK` rows, in coarse and fine parts that no number of equal rows makes drift."""
    coarse = jnp.round(values * _BLOCK) / _BLOCK
    return Sum(*(jax.ops.segment_sum(part, group, groups) for part in (coarse, values - coarse)))


def _two_sum(a, b):
    """`a + b` rounded, and exactly what the rounding took away, whichever is larger (Knuth, 1969)."""
    s = a + b
    b_part = s - a
    return s, (a - (s - b_part)) + (b - b_part)
