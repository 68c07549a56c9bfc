"""Rules by which the log-variances of a posterior follow the data and the prior.

The optimizer of a Bayesian method sees the means alone, as in any training. What moves the log-variances is a
`VarianceRule`: by default their gradient, with an optimizer of its own; or any rule in closed form, given
what a step knows. Two of them in these terms, with `sigma^2 = exp(log_var)`:

- the curvature that natural-gradient methods estimate (Khan et al., 2018) is
  `2 * evidence.log_var / sigma^2`;
- that of Vadam is a running mean of `evidence.mean ** 2`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from byov_jax import ranges
from byov_jax.bayes.posterior import Posterior, kl_gradient


class Evidence(NamedTuple):
    """What a step passes to a variance rule. All trees are like those of the posterior.

    Attributes:
      mean: gradient of the data term in the drawn weights, averaged over draws: that in the means.
      log_var: gradient of the data term in the log-variances.
      prior_mean: mean of the prior, a tree or a scalar.
      prior_log_var: log-variance of the prior, a tree or a scalar.
      kl_weight: `beta / Z`, the weight of the KL beside the data term.
    """

    mean: Any
    log_var: Any
    prior_mean: Any
    prior_log_var: Any
    kl_weight: Any


class VarianceRule(NamedTuple):
    """How log-variances follow.

    Attributes:
      init: `posterior -> state`.
      update: `(evidence, state, posterior) -> (log_var, state)`, pure: the new log-variances, None where a
        parameter is a point estimate. The posterior is that before the step.
    """

    init: Callable[[Posterior], Any]
    update: Callable[[Evidence, Any, Posterior], tuple[Any, Any]]


def gradient(optimizer: optax.GradientTransformation) -> VarianceRule:
    """Descend the gradient of the whole objective in log_var: Bayes by Backprop.

    Args:
      optimizer: any optax transformation over the tree of log-variances that asks for no more than gradients
        and log-variances, with a learning rate of its own. Adam moves log_var by at most about its learning
        rate in a step, whatever the gradient's size; SGD and LARS would not move it at all where gradients
        are small.
    """

    def update(evidence: Evidence, state: Any, q: Posterior) -> tuple[Any, Any]:
        kl = kl_gradient(q, evidence.prior_mean, evidence.prior_log_var).log_var
        total = jax.tree.map(lambda data, kl: data + evidence.kl_weight * kl, evidence.log_var, kl)
        updates, state = optimizer.update(total, state, q.log_var)
        return optax.apply_updates(q.log_var, updates), state

    return VarianceRule(lambda q: optimizer.init(jax.tree.map(jnp.asarray, q.log_var)), update)


def adam(
    learning_rate: float | jax.Array | Callable[[Any], Any] = 1e-3, *, b1: float = 0.9, b2: float = 0.95
) -> VarianceRule:
    """Descend the gradient with Adam, the default rule: `gradient(optax.adam(...))`."""
    ranges.check(learning_rate=learning_rate, b1=b1, b2=b2)
    return gradient(optax.adam(learning_rate, b1=b1, b2=b2))


def fixed() -> VarianceRule:
    """Keep every sigma as it was initialised."""
    return VarianceRule(lambda q: (), lambda evidence, state, q: (q.log_var, state))
