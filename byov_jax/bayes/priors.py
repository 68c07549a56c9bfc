"""Priors: Gaussians of fixed moments, and the paper's two that follow the teacher.

A prior is a triple of pure functions. The state of a teacher prior complements the teacher: an EMA of the
parts of the mean that the teacher lacks (BYOL's predictor; all parts without a teacher), and the EMA
variance. Means and teachers are dicts of parts, `{"encoder": ..., "projector": ..., "predictor": ...}`.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from byov_jax import ranges
from byov_jax.bayes.moments import ema, ema_variance
from byov_jax.bayes.paths import path_of
from byov_jax.bayes.posterior import Posterior

INITIAL_VARIANCE = math.exp(-10.0)


class PriorState(NamedTuple):
    """The state of a prior between steps.

    Attributes:
      mean: EMA of the parts of the posterior mean that the teacher lacks; the means by path of `gaussian`;
        `{}` for N(0, I).
      variance: EMA variance of the posterior mean, None where it is not Bayesian; the variances by path of
        `gaussian`; None if all weights share one.
    """

    mean: dict[str, Any]
    variance: Any


class Prior(NamedTuple):
    """A prior over the weights.

    Attributes:
      init: `(q, teacher) -> PriorState`.
      moments: `(state, teacher) -> (mean, log_var)`, the arguments of `posterior.kl`, without gradient.
      update: `(state, teacher, mean, tau) -> PriorState` after a step, with the teacher before its update.
      moving: whether it follows the means, with the momentum `tau`.
    """

    init: Callable[[Posterior, dict], PriorState]
    moments: Callable[[PriorState, dict], tuple[Any, Any]]
    update: Callable[[PriorState, dict, dict, Any], PriorState]
    moving: bool = False


def standard() -> Prior:
    """(i) `N(0, I)`."""
    return gaussian()


def gaussian(mean: float | Mapping[str, float] = 0.0, std: float | Mapping[str, float] = 1.0) -> Prior:
    """`N(mean, std^2)`, the same for all weights or by path.

    Args:
      mean: a number; or numbers by regular expression on the path, of which the first that matches counts.
      std: likewise, positive. `{"norm": 0.1, "": 1.0}` holds the norms more tightly than the rest.
    """
    for value in std.values() if isinstance(std, Mapping) else (std,):
        ranges.check(prior_std=value)
    for value in mean.values() if isinstance(mean, Mapping) else (mean,):
        ranges.check(prior_mean=value)
    if not (isinstance(mean, Mapping) or isinstance(std, Mapping)):
        log_var = 2.0 * math.log(std)
        return Prior(
            init=lambda q, teacher: PriorState({}, None),
            moments=lambda state, teacher: (mean, log_var),
            update=lambda state, teacher, mean, tau: state,
        )

    def init(q: Posterior, teacher: dict) -> PriorState:
        means = _by_path(q.mean, mean, "mean")
        stds = _by_path(q.mean, std, "std")
        return PriorState(means, jax.tree.map(jnp.square, stds))

    return Prior(
        init=init,
        moments=lambda state, teacher: jax.lax.stop_gradient(
            (state.mean, jax.tree.map(jnp.log, state.variance))
        ),
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
        moving=True,
    )


def teacher_moments(floor: float = 1e-8) -> Prior:
    """(iii) `N(sg mu_T, sg Sigma_T)`, with `Sigma_T` the EMA variance of the student's mean.

    As training settles, the means move less and `Sigma_T` shrinks faster than sigma can follow, so that the
    KL grows: to 50 nats per weight and 15 times the data term in 600 steps. `floor=exp(-10)`, the initial
    variance, bounds it; a training warns when the KL has grown and outweighs the data.

    Args:
      floor: minimum prior variance; without it, the variance of a mean that stops moving vanishes.
    """
    ranges.check(floor=floor)

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

    return Prior(init, moments, update, moving=True)


def _by_path(params, values: float | Mapping[str, float], name: str):
    """Return a tree of scalars like the parameters."""
    patterns = values if isinstance(values, Mapping) else {"": values}

    def value_of(keys, leaf):
        path = path_of(keys)
        for pattern, value in patterns.items():
            if re.search(pattern, path):
                return jnp.asarray(value, jnp.float32)
        raise ValueError(f'no pattern of {name} matches {path!r}: add "" for all others')

    return jax.tree_util.tree_map_with_path(value_of, params)


def _without(mean: dict, teacher: dict) -> dict:
    """Drop the parts that the teacher has."""
    return {name: part for name, part in mean.items() if name not in teacher}


def _prior_mean(state: PriorState, teacher: dict) -> dict:
    return jax.lax.stop_gradient({**teacher, **state.mean})
