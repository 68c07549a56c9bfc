"""Training state, diagnostics and settings of a step."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from byov_jax.bayes import priors, variance
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.priors import Prior, PriorState
from byov_jax.bayes.select import Where
from byov_jax.bayes.variance import VarianceRule
from byov_jax.methods.guard import Guard
from byov_jax.methods.layout import ONE_DEVICE, Layout
from byov_jax.methods.online_probe import OnlineProbe
from byov_jax.methods.schedules import Schedule
from byov_jax.methods.teacher import Teacher


class State(NamedTuple):
    """The training state. It holds no rng: keys derive from (root key, step).

    Attributes:
      step: number of steps.
      posterior: the network's weights; every log-variance of a deterministic method is None.
      stats: the network's other collections (`batch_stats`, ...).
      teacher: the EMA teacher; empty for methods without one.
      prior: what the prior keeps, such as moving averages.
      optimizer: state of the optimizer of the means.
      variance: state of the variance rule.
      online: the online probe and its optimizer state.
      guard: counters of skipped steps.
    """

    step: Int[Array, ""]
    posterior: Posterior
    stats: dict[str, Any]
    teacher: Teacher
    prior: PriorState
    optimizer: Any
    variance: Any
    online: OnlineProbe
    guard: Guard


class Info(NamedTuple):
    """Diagnostics of a step, not needed by the next one.

    Attributes:
      loss: the data term, averaged over draws.
      metrics: what the objective reports, by name: "cosine", the mean cosine similarity of predictions and
        targets, for BYOL and BYOV; "accuracy" on the training batch for supervised methods; "probe_loss" and
        "probe_accuracy" of the online probe, if there is one.
      embedding_std: collapse monitor: 1 = uniform on the sphere, 0 = collapsed; None without embeddings.
      kl: KL to the prior in nats, summed over all Bayesian scalars.
      kl_per_weight: KL per Bayesian scalar.
      kl_scaled: the term added to the loss, `beta * kl / Z`.
      beta: weight of the KL.
      temperature: `beta * N / Z`: 1 = exact posterior, below 1 = cold posterior.
      implied_l2: the L2 penalty on the distance of the means from the prior's that the KL amounts to.
      learning_rate: learning rate of the means; None if the optimizer's state does not tell.
      tau: momentum of the teacher.
      gradient_norm: global norm over means and log-variances, before clipping.
      skipped: number of steps skipped so far by the `guard`.
      skipped_in_a_row: number of consecutive skipped steps up to now.
      skipped_for: cause of the last skipped step, an index into `guard.REASONS`.
    """

    loss: Float[Array, ""]
    metrics: dict[str, Array]
    embedding_std: Float[Array, ""] | None
    kl: Float[Array, ""]
    kl_per_weight: Float[Array, ""]
    kl_scaled: Float[Array, ""]
    beta: Any
    temperature: Any
    implied_l2: Any
    learning_rate: Any
    tau: Any
    gradient_norm: Float[Array, ""]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    skipped_for: Int[Array, ""]

    def to_dict(self) -> dict[str, float]:
        """Return all values as a flat dictionary of Python numbers, for any logger."""
        values = jax.device_get(self)._asdict()
        flat = values | values.pop("metrics")
        return {name: np.asarray(value).item() for name, value in flat.items() if value is not None}


class Bayes(NamedTuple):
    """What makes a method Bayesian: `from_objective(..., bayes=Bayes(dataset_size=50_000, beta=0.3))`.

    Attributes:
      dataset_size: number of training images N, which sets the temperature, and Z for two normalisers.
      beta: weight of the KL, a number or a schedule of optimizer steps.
      prior: any of `priors`.
      variance: the rule that the log-variances follow, any of `variance`.
      kl_norm: Z: `"params"` (mean KL per weight), `"dataset"` (the exact ELBO), `"batches"` or `"none"`.
      where: which parameters are Bayesian, as in `posterior.init`.
      log_var: initial log-variance of the Bayesian parameters.
      draws: weight draws per step; the loss is averaged over them.
      draw_per_view: draw separate weights for each view, instead of one draw for all.
    """

    dataset_size: int
    beta: float | Schedule
    prior: Prior = priors.standard()
    variance: VarianceRule = variance.adam()
    kl_norm: str = "params"
    where: Where = "all"
    log_var: float = -10.0
    draws: int = 1
    draw_per_view: bool = False


POINT_ESTIMATE = Bayes(dataset_size=1, beta=0.0, variance=variance.fixed(), kl_norm="none")
"""What a step computes with where nothing has a log-variance: the KL is 0."""


class Settings(NamedTuple):
    """Hyper-parameters of a step, documented in `methods.from_objective`."""

    bayes: Bayes = POINT_ESTIMATE
    tau: float | Schedule = 1.0
    accumulate: int = 1
    layout: Layout = ONE_DEVICE
    spike: float = 0.0
