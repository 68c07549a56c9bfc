"""Exponential moving averages of a tree, and of its centred second moment."""

import jax
import jax.numpy as jnp


def ema(average, new, tau):
    """`tau * average + (1 - tau) * new`, leaf by leaf: tau = 1 keeps the average, tau = 0 the new tree."""
    return jax.tree.map(lambda old, x: tau * old + (1.0 - tau) * x, average, new)


def ema_variance(variance, average, new, tau):
    """The EMA variance that belongs to `ema`, to be called with the average *before* its update.

    `d = new - average;  v <- tau * (v + (1 - tau) * d^2)`: algebraically `EMA[x^2] - EMA[x]^2`, but a sum of
    positive terms, where the difference would be negative most of the time in float32.
    A leaf whose variance is None keeps None.
    """

    def update(old, x, v):
        return None if v is None else tau * (v + (1.0 - tau) * jnp.square(x - old))

    return jax.tree.map(update, average, new, variance)
