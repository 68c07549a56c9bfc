"""Skip and count, inside the compiled program, the steps whose values are not finite or whose loss spikes."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

REASONS = ("", "the loss", "the KL", "the gradient", "a spike of the loss")
"""Causes of a skipped step, indexed by `Guard.reason`; all but the spike stand for a non-finite value."""

MOMENTUM = 0.99
"""Momentum of the moving average of the loss."""


class Guard(NamedTuple):
    """Counters of skipped steps.

    Attributes:
      skipped: number of skipped steps.
      in_a_row: number of consecutive skipped steps up to now.
      reason: cause of the last skipped step, an index into `REASONS`.
      average: moving average of the loss over the accepted steps; 0 before the first.
    """

    skipped: Int[Array, ""]
    in_a_row: Int[Array, ""]
    reason: Int[Array, ""]
    average: Float[Array, ""]


def init() -> Guard:
    """Return zero counters."""
    zero = jnp.zeros((), jnp.int32)
    return Guard(zero, zero, zero, jnp.zeros(()))


def check(
    guard: Guard, loss: Array, kl: Array, gradient_norm: Array, spike: float
) -> tuple[Bool[Array, ""], Guard]:
    """Return whether to accept a step, and the updated guard.

    Args:
      guard: the guard before the step.
      loss: the data term.
      kl: in nats.
      gradient_norm: global norm over all parameters, not finite if any gradient is not.
      spike: reject a loss above `spike` times its moving average; 0 disables this check.
    """
    bad = [~jnp.isfinite(value) for value in (loss, kl, gradient_norm)]
    bad.append((guard.average > 0.0) & (loss > spike * guard.average) if spike else jnp.zeros((), bool))
    reason = 1 + jnp.argmax(jnp.stack(bad)).astype(jnp.int32)
    accepted = ~jnp.any(jnp.stack(bad))
    first = guard.average == 0.0
    average = jnp.where(first, loss, MOMENTUM * guard.average + (1.0 - MOMENTUM) * loss)
    return accepted, Guard(
        skipped=guard.skipped + ~accepted,
        in_a_row=jnp.where(accepted, 0, guard.in_a_row + 1),
        reason=jnp.where(accepted, guard.reason, reason),
        average=jnp.where(accepted, average, guard.average),
    )
