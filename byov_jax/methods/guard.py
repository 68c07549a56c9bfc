"""A step that would spoil the state is skipped, inside the compiled program, and counted."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

REASONS = ("", "the loss", "the KL", "the gradient", "a spike of the loss")
"""What a step was skipped for, by its number in `Guard.reason`."""

AVERAGE = 0.99
"""Momentum of the average that a spike is compared with."""


class Guard(NamedTuple):
    """What was skipped so far.

    Attributes:
      skipped: how many steps.
      in_a_row: how many up to now, without one in between that was taken.
      reason: why the last of them was, an index into `REASONS`.
      average: moving average of the loss over the steps that were taken; 0 before the first.
    """

    skipped: Int[Array, ""]
    in_a_row: Int[Array, ""]
    reason: Int[Array, ""]
    average: Float[Array, ""]


def init() -> Guard:
    """Nothing was skipped yet."""
    zero = jnp.zeros((), jnp.int32)
    return Guard(zero, zero, zero, jnp.zeros(()))


def check(
    guard: Guard, loss: Array, kl: Array, gradient_norm: Array, spike: float
) -> tuple[Bool[Array, ""], Guard]:
    """Whether a step may be taken, and the guard after it.

    Args:
      guard: before the step.
      loss: the data term.
      kl: in nats.
      gradient_norm: over all parameters, so that one value that is not finite shows.
      spike: a loss of more than so many times its average is skipped; 0 for no such limit.
    """
    bad = [~jnp.isfinite(value) for value in (loss, kl, gradient_norm)]
    bad.append((guard.average > 0.0) & (loss > spike * guard.average) if spike else jnp.zeros((), bool))
    reason = 1 + jnp.argmax(jnp.stack(bad)).astype(jnp.int32)
    taken = ~jnp.any(jnp.stack(bad))
    first = guard.average == 0.0
    average = jnp.where(first, loss, AVERAGE * guard.average + (1.0 - AVERAGE) * loss)
    return taken, Guard(
        skipped=guard.skipped + ~taken,
        in_a_row=jnp.where(taken, 0, guard.in_a_row + 1),
        reason=jnp.where(taken, guard.reason, reason),
        average=jnp.where(taken, average, guard.average),
    )


def choose(taken: Bool[Array, ""], after: Any, before: Any) -> Any:
    """The state after a step that is taken, the one before it if it is skipped."""
    return jax.tree.map(lambda new, old: jnp.where(taken, new, old), after, before)
