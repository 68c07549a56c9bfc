"""Schedules: pure functions from the optimizer step to a value."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

Schedule = Callable[[Any], Any]
"""`step -> value`, such as any `optax.Schedule`."""


def constant(value: float) -> Schedule:
    """Return a constant schedule."""
    return optax.constant_schedule(value)


def as_schedule(value: float | Schedule) -> Schedule:
    """Return a schedule unchanged and a number as a constant schedule."""
    return value if callable(value) else constant(value)


def cosine(start: float, end: float, steps: int) -> Schedule:
    """Half a cosine from `start` to `end`: `start + (end - start) * (1 - cos(pi t / T)) / 2`, then constant.

    The paper anneals `beta` with `cosine(0.0, 1.0, steps)`.
    """
    _check_steps(steps)
    return lambda step: start + (end - start) * _half_cosine(step, steps)


def ema_cosine(base: float, steps: int) -> Schedule:
    """BYOL's teacher momentum, from `base` to 1: `1 - (1 - base) * (1 + cos(pi t / T)) / 2`."""
    if not 0.0 <= base <= 1.0:
        raise ValueError(f"base={base!r} must lie in [0, 1]: it is the momentum of a moving average")
    _check_steps(steps)
    return lambda step: 1.0 - (1.0 - base) * (1.0 - _half_cosine(step, steps))


def warmup_cosine(peak: float, warmup: int, steps: int) -> Schedule:
    """Learning rate: linear from 0 to `peak` over `warmup` steps, then a cosine down to 0 at `steps`."""
    if not 0 <= warmup < steps:
        raise ValueError(f"warmup={warmup!r} must lie in [0, steps), and steps is {steps!r}")
    return optax.warmup_cosine_decay_schedule(0.0 if warmup else peak, peak, warmup, steps)


def scale_ema(tau: float, k: float) -> float:
    """EMA scaling rule: with `k` times the batch, a momentum of `tau ** k` averages over as many images.

    `scale_ema(.99, 256 / 4096)` converts the momentum .99 at batch 4096 to batch 256.
    """
    if not 0.0 <= tau <= 1.0:
        raise ValueError(f"tau={tau!r} must lie in [0, 1]: it is the momentum of a moving average")
    if not k > 0.0:
        raise ValueError(f"k={k!r} must be positive: it is the ratio of two batch sizes")
    return tau**k


def _half_cosine(step, steps: int):
    """Rise from 0 to 1 over `steps`."""
    progress = jnp.clip(step / steps, 0.0, 1.0)
    return 0.5 * (1.0 - jnp.cos(jnp.pi * progress))


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"steps={steps!r} must be at least 1")
