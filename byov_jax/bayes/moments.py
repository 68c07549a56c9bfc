"""Exponential moving average and variance of a tree."""

import jax
import jax.numpy as jnp


def ema(average, new, tau):
    """Return `tau * average + (1 - tau) * new`, exact at tau = 1 (`average`) and tau = 0 (`new`)."""
    return jax.tree.map(lambda old, x: tau * old + (1.0 - tau) * x, average, new)


def ema_variance(variance, average, new, tau):
    """Return the updated EMA variance, given the average *before* its update by `ema`.

    `d = new - average;  v <- tau * (v + (1 - tau) * d^2)`: algebraically `EMA[x^2] - EMA[x]^2`, whose float32
    rounding is often negative; this sum of positive terms is not. A variance of None stays None.
    """

    def update(old, x, v):
        return None if v is None else tau * (v + (1.0 - tau) * jnp.square(x - old))

    return jax.tree.map(update, average, new, variance)
