"""The training step that all four methods share: sample, loss, KL, update, teacher, prior."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from byov_jax.bayes import posterior, temperature
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.priors import Prior, PriorState
from byov_jax.images import image_keys
from byov_jax.methods import guard, online_probe, teacher
from byov_jax.methods.guard import Guard
from byov_jax.methods.layout import ONE_DEVICE, Layout
from byov_jax.methods.objectives import Batch, Monitors, Objective, embedding_std
from byov_jax.methods.online_probe import OnlineProbe
from byov_jax.methods.optimizers import learning_rate
from byov_jax.methods.schedules import Schedule, as_schedule
from byov_jax.methods.teacher import Teacher


class State(NamedTuple):
    """The training state. It holds no rng: keys derive from (root key, step).

    Attributes:
      step: number of steps.
      posterior: the student's weights; every log-variance of a deterministic method is None.
      stats: the student's other collections (`batch_stats`, ...).
      teacher: the EMA teacher; empty for supervised methods.
      prior: moving averages of the prior.
      optimizer: state of the optax optimizer.
      online: the online probe and its optimizer state.
      guard: counters of skipped steps.
    """

    step: Int[Array, ""]
    posterior: Posterior
    stats: dict[str, Any]
    teacher: Teacher
    prior: PriorState
    optimizer: Any
    online: OnlineProbe
    guard: Guard


class Info(NamedTuple):
    """Diagnostics of a step, not needed by the next one.

    Attributes:
      loss: the data term, averaged over draws.
      cosine: mean cosine similarity of predictions and targets; None for supervised methods.
      accuracy: training accuracy of supervised methods, else None.
      embedding_std: collapse monitor: 1 = uniform on the sphere, 0 = collapsed.
      kl: KL to the prior in nats, summed over all Bayesian scalars.
      kl_per_weight: KL per Bayesian scalar.
      kl_scaled: the term added to the loss, `beta * kl / Z`.
      beta: weight of the KL.
      temperature: `beta * N / Z`: 1 = exact posterior, below 1 = cold posterior.
      learning_rate: learning rate of the means.
      tau: momentum of the teacher.
      gradient_norm: global norm over means and log-variances, before clipping.
      probe_loss: cross-entropy of the online probe on the training batch; None without a probe.
      probe_accuracy: accuracy of the online probe on the training batch; None without a probe.
      skipped: number of steps skipped so far by the `guard`.
      skipped_in_a_row: number of consecutive skipped steps up to now.
      skipped_for: cause of the last skipped step, an index into `guard.REASONS`.
    """

    loss: Float[Array, ""]
    cosine: Float[Array, ""] | None
    accuracy: Float[Array, ""] | None
    embedding_std: Float[Array, ""]
    kl: Float[Array, ""]
    kl_per_weight: Float[Array, ""]
    kl_scaled: Float[Array, ""]
    beta: Any
    temperature: Any
    learning_rate: Any
    tau: Any
    gradient_norm: Float[Array, ""]
    probe_loss: Float[Array, ""] | None
    probe_accuracy: Float[Array, ""] | None
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    skipped_for: Int[Array, ""]


class Settings(NamedTuple):
    """Hyper-parameters of a step, documented in `methods.byov`; the defaults suit a deterministic method."""

    beta: float | Schedule = 0.0
    tau: float | Schedule = 1.0
    kl_norm: str = "none"
    dataset_size: int = 1
    draws: int = 1
    draw_per_view: bool = False
    accumulate: int = 1
    layout: Layout = ONE_DEVICE
    spike: float = 0.0


class Streams(NamedTuple):
    """The random streams of one step."""

    views: Array
    weights: Array
    drop_path: Array


class DataTerm(NamedTuple):
    """Value of the data term and its diagnostics, averaged over draws, micro-batches and devices."""

    loss: Float[Array, ""]
    monitors: Monitors
    probe_loss: Float[Array, ""] | None
    probe_accuracy: Float[Array, ""] | None


def make_step(
    objective: Objective, optimizer: optax.GradientTransformation, prior: Prior, settings: Settings
) -> Callable[[State, Batch, Array], tuple[State, Info]]:
    """Return the pure function `step(state, batch, key) -> (state, info)`.

    `key` is the root key, the same at every step: each step folds its number into it.
    """
    beta_schedule, tau_schedule = as_schedule(settings.beta), as_schedule(settings.tau)

    def step(state: State, batch: Batch, key: Array) -> tuple[State, Info]:
        streams = Streams(*jax.random.split(jax.random.fold_in(_typed(key), state.step), 3))
        beta, tau = beta_schedule(state.step), tau_schedule(state.step)
        z = _normalizer(state, batch, settings)

        data, stats, (gradient, probe_gradient) = _data_term(objective, state, batch, streams, settings)
        kl, kl_gradient = jax.value_and_grad(posterior.kl)(
            state.posterior, *prior.moments(state.prior, state.teacher.params)
        )
        gradient = jax.tree.map(lambda data, kl: data + beta / z * kl, gradient, kl_gradient)

        gradient_norm = optax.tree.norm(gradient)
        accepted, new_guard = guard.check(state.guard, data.loss, kl, gradient_norm, settings.spike)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.posterior)
        q = optax.apply_updates(state.posterior, updates)
        new_state = State(
            step=state.step,
            posterior=q,
            stats=stats,
            teacher=teacher.update(state.teacher, q.mean, stats, tau),
            prior=prior.update(state.prior, state.teacher.params, q.mean, tau),
            optimizer=optimizer_state,
            online=online_probe.update(state.online, probe_gradient),
            guard=new_guard,
        )
        # A rejected step leaves all but the step number and the counters as they were.
        new_state = guard.select(accepted, new_state, state)._replace(step=state.step + 1, guard=new_guard)

        info = Info(
            loss=data.loss,
            cosine=data.monitors.cosine,
            accuracy=data.monitors.accuracy,
            embedding_std=embedding_std(data.monitors.embedding),
            kl=kl,
            kl_per_weight=kl / max(posterior.size(q), 1),
            kl_scaled=beta * kl / z,
            beta=beta,
            temperature=temperature.temperature(beta, dataset_size=settings.dataset_size, z=z),
            learning_rate=learning_rate(optimizer_state),
            tau=tau,
            gradient_norm=gradient_norm,
            probe_loss=data.probe_loss,
            probe_accuracy=data.probe_accuracy,
            skipped=new_guard.skipped,
            skipped_in_a_row=new_guard.in_a_row,
            skipped_for=new_guard.reason,
        )
        return new_state, info

    return step


def _data_term(
    objective: Objective, state: State, batch: Batch, streams: Streams, settings: Settings
) -> tuple[DataTerm, dict[str, Any], tuple[Posterior, dict]]:
    """Return the data term, the updated statistics and the gradients of the posterior and the probe."""
    layout = settings.layout
    axis = layout.axis_name
    device = 0 if axis is None else jax.lax.axis_index(axis)
    one_draw = axis is None or layout.one_draw
    weights_key = streams.weights if one_draw else jax.random.fold_in(streams.weights, device)
    size = batch.image.shape[0]
    keys = image_keys(streams.views, device * size + jnp.arange(size))
    gathered_teacher = layout.gather(state.teacher)

    def loss(trained: tuple[Posterior, dict], stats: dict, index, micro_batch: tuple[Batch, Array]):
        q, probe = trained
        draw_key = jax.random.fold_in(weights_key, index // settings.accumulate)
        weights = _sample(draw_key, q, settings)
        drop_path_key = jax.random.fold_in(jax.random.fold_in(streams.drop_path, index), device)
        loss, outcome = objective(weights, stats, gathered_teacher, *micro_batch, drop_path_key)
        if not probe:
            return loss, (outcome.stats, DataTerm(loss, outcome.monitors, None, None))
        # The stop-gradient in the probe's loss separates the two terms: they share no parameter.
        labels = micro_batch[0].label
        probe_loss, accuracy = online_probe.loss(layout.gather(probe), outcome.features, labels)
        return loss + probe_loss, (outcome.stats, DataTerm(loss, outcome.monitors, probe_loss, accuracy))

    result = _accumulate(jax.grad(loss, has_aux=True), state, (batch, keys), settings)
    return result if axis is None else jax.lax.pmean(result, axis)


def _accumulate(gradient_fn, state: State, batch: tuple[Batch, Array], settings: Settings):
    """Average over draws x micro-batches, one after the other to save memory; carry the statistics along."""
    trained = (state.posterior, state.online.params)
    count = settings.draws * settings.accumulate
    if count == 1:
        gradient, (stats, data) = gradient_fn(trained, state.stats, 0, batch)
        return data, stats, gradient

    micro_batches = _micro_batches(batch, settings.accumulate)

    def evaluate(stats, index):
        micro_batch = jax.tree.map(lambda x: x[index % settings.accumulate], micro_batches)
        gradient, (stats, data) = gradient_fn(trained, stats, index, micro_batch)
        return stats, (data, gradient)

    def body(carry, index):
        stats, total = carry
        stats, term = evaluate(stats, index)
        return (stats, jax.tree.map(lambda t, x: t + x / count, total, term)), None

    _, shapes = jax.eval_shape(evaluate, state.stats, 0)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (stats, (data, gradient)), _ = jax.lax.scan(body, (state.stats, zeros), jnp.arange(count))
    return data, stats, gradient


def _micro_batches(batch, count: int):
    """[batch, ...] -> [count, batch / count, ...], strided so that each part spans all devices of a shard."""
    size = jax.tree.leaves(batch)[0].shape[0]
    if size % count:
        raise ValueError(f"accumulate={count} does not divide the batch of {size} images (per device)")
    return jax.tree.map(lambda x: jnp.swapaxes(x.reshape(size // count, count, *x.shape[1:]), 0, 1), batch)


def _sample(key: Array, q: Posterior, settings: Settings) -> tuple[Any, Any]:
    """Return the weights for the two views: one draw for both, or one for each."""

    def sample(key: Array) -> Any:
        return settings.layout.gather(posterior.sample(key, q, constrain=settings.layout.shard))

    if not settings.draw_per_view:
        weights = sample(key)
        return weights, weights
    first, second = jax.random.split(key)
    return sample(first), sample(second)


def _typed(key: Array) -> Array:
    """Convert a raw key of `jax.random.PRNGKey` to a typed key."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _normalizer(state: State, batch: Batch, settings: Settings) -> float:
    axis = settings.layout.axis_name
    devices = 1 if axis is None else jax.lax.axis_size(axis)
    return temperature.normalizer(
        settings.kl_norm,
        size=posterior.size(state.posterior),
        dataset_size=settings.dataset_size,
        batch_size=batch.image.shape[0] * devices,
    )
