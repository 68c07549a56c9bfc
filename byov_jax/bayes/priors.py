"""The three priors of the paper: N(0, I), N(teacher mean, I), N(teacher mean, teacher variance).

A prior is a triple of pure functions. Its state complements the teacher: an EMA of the parts of the mean that
the teacher lacks (BYOL's predictor; all parts without a teacher), and the EMA variance. Means and teachers
are dicts of parts, `{"encoder": ..., "projector": ..., "predictor": ...}`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from byov_jax.bayes.moments import ema, ema_variance
from byov_jax.bayes.posterior import Posterior

INITIAL_VARIANCE = math.exp(-10.0)


class PriorState(NamedTuple):
    """The moving averages of a prior.

    Attributes:
      mean: EMA of the parts of the posterior mean that the teacher lacks; `{}` for N(0, I).
      variance: EMA variance of the posterior mean, None where it is not Bayesian; None if the prior has unit
        variance.
    """

    mean: dict[str, Any]
    variance: Any


class Prior(NamedTuple):
    """A prior over the weights.

    Attributes:
      init: `(q, teacher) -> PriorState`.
      moments: `(state, teacher) -> (mean, log_var)`, the arguments of `posterior.kl`, without gradient.
      update: `(state, teacher, mean, tau) -> PriorState` after a step, with the teacher before its update.
    """

    init: Callable[[Posterior, dict], PriorState]
    moments: Callable[[PriorState, dict], tuple[Any, Any]]
    update: Callable[[PriorState, dict, dict, Any], PriorState]


def standard() -> Prior:
    """(i) `N(0, I)`."""
    return Prior(
        init=lambda q, teacher: PriorState({}, None),
        moments=lambda state, teacher: (0.0, 0.0),
        update=lambda state, teacher, mean, tau: state,
    )


def teacher_mean() -> Prior:
    """(ii) `N(sg mu_T, I)`: pulls the student towards its own moving average."""
    return Prior(
        init=lambda q, teacher: PriorState(_without(q.mean, teacher), None),
        moments=lambda state, teacher: (_prior_mean(state, teacher), 0.0),
        update=lambda state, teacher, mean, tau: state._replace(
            mean=ema(state.mean, _without(mean, teacher), tau)
        ),
    )


def teacher_moments(floor: float = 1e-8) -> Prior:
    """(iii) `N(sg mu_T, sg Sigma_T)`, with `Sigma_T` the EMA variance of the student's mean.

    Args:
      floor: minimum prior variance; without it, the variance of a mean that stops moving vanishes.
    """
    if not floor > 0.0:
        raise ValueError(f"floor={floor!r} must be positive: it is the minimum prior variance")

    def init(q: Posterior, teacher: dict) -> PriorState:
        variance = jax.tree.map(lambda leaf: jnp.full(leaf.shape, INITIAL_VARIANCE, jnp.float32), q.log_var)
        return PriorState(_without(q.mean, teacher), variance)

    def moments(state: PriorState, teacher: dict):
        log_var = jax.tree.map(lambda v: jnp.log(jnp.maximum(v, floor)), state.variance)
        return _prior_mean(state, teacher), jax.lax.stop_gradient(log_var)

    def update(state: PriorState, teacher: dict, mean: dict, tau) -> PriorState:
        return PriorState(
            mean=ema(state.mean, _without(mean, teacher), tau),
            variance=ema_variance(state.variance, _prior_mean(state, teacher), mean, tau),
        )

    return Prior(init, moments, update)


def _without(mean: dict, teacher: dict) -> dict:
    """Drop the parts that the teacher has."""
    return {name: part for name, part in mean.items() if name not in teacher}


def _prior_mean(state: PriorState, teacher: dict) -> dict:
    return jax.lax.stop_gradient({**teacher, **state.mean})
