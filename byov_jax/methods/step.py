"""The one training step of all four methods: sample, loss, KL, update, teacher, prior."""

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
from byov_jax.methods import guard as guards
from byov_jax.methods import online_probe as probes
from byov_jax.methods import teacher as teachers
from byov_jax.methods.guard import Guard
from byov_jax.methods.layout import Layout
from byov_jax.methods.objectives import Batch, Objective, embedding_std
from byov_jax.methods.online_probe import OnlineProbe
from byov_jax.methods.optimizers import learning_rate
from byov_jax.methods.schedules import Schedule
from byov_jax.methods.teacher import Teacher


class State(NamedTuple):
    """All that the next step needs; no rng in it, since keys derive from (root key, step).

    Attributes:
      step: optimizer steps taken.
      posterior: the student's weights; a deterministic method has log-variances None throughout.
      stats: the student's other collections (`batch_stats`, ...).
      teacher: the EMA teacher; empty for supervised methods.
      prior: what the prior remembers.
      optimizer: optax's state.
      online: the linear probe that follows training.
      guard: what was skipped because it would have spoilt the rest.
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
    """What a step shows; nothing of it is needed by the next one.

    Attributes:
      loss: the data term, averaged over draws.
      cosine: mean cosine similarity of predictions and targets; None for supervised methods.
      accuracy: training accuracy of supervised methods; None for the others.
      embedding_std: collapse monitor, 1 = spread over the sphere, 0 = collapsed.
      kl: KL to the prior in nats, summed over all Bayesian scalars.
      kl_per_weight: the same, per Bayesian scalar.
      kl_scaled: what is added to the loss, `beta * kl / Z`.
      beta: the KL's weight.
      temperature: `beta * N / Z`: 1 = exact posterior, below 1 = cold posterior.
      learning_rate: of the means.
      tau: the teacher's momentum.
      gradient_norm: global norm before clipping, over means and log-variances.
      probe_loss: cross-entropy of the online probe on the training batch; None without one.
      probe_accuracy: its accuracy there.
      skipped: steps that were skipped so far, because the loss, the KL or the gradient was not finite.
      skipped_in_a_row: how many of them are the last ones.
      skipped_for: why the last of them was, an index into `guard.REASONS`.
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
    """How a step weighs and averages; `methods` documents each of them."""

    beta: Schedule
    tau: Schedule
    kl_norm: str
    dataset_size: int
    draws: int
    draw_per_view: bool
    accumulate: int
    layout: Layout
    spike: float


class Streams(NamedTuple):
    """The random streams of one step."""

    views: Array
    weights: Array
    drop_path: Array


def make_step(
    objective: Objective, optimizer: optax.GradientTransformation, prior: Prior, settings: Settings
) -> Callable[[State, Batch, Array], tuple[State, Info]]:
    """`step(state, batch, key) -> (state, info)`, pure; `key` is the root key, the same at every step."""

    def step(state: State, batch: Batch, key: Array) -> tuple[State, Info]:
        streams = Streams(*jax.random.split(jax.random.fold_in(_typed(key), state.step), 3))
        beta, tau = settings.beta(state.step), settings.tau(state.step)
        z = _normalizer(state, batch, settings)

        loss, (gradient, probe_gradient), stats, monitors, probe = _data_term(
            objective, state, batch, streams, settings
        )
        kl, kl_gradient = jax.value_and_grad(posterior.kl)(
            state.posterior, *prior.moments(state.prior, state.teacher.params)
        )
        gradient = jax.tree.map(lambda data, kl: data + beta / z * kl, gradient, kl_gradient)

        gradient_norm = optax.tree.norm(gradient)
        taken, guard = guards.check(state.guard, loss, kl, gradient_norm, settings.spike)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.posterior)
        q = optax.apply_updates(state.posterior, updates)
        after = State(
            step=state.step,
            posterior=q,
            stats=stats,
            teacher=teachers.update(state.teacher, q.mean, stats, tau),
            prior=prior.update(state.prior, state.teacher.params, q.mean, tau),
            optimizer=optimizer_state,
            online=probes.update(state.online, probe_gradient),
            guard=guard,
        )
        new_state = guards.choose(taken, after, state)._replace(step=state.step + 1, guard=guard)
        info = Info(
            loss=loss,
            cosine=monitors.cosine,
            accuracy=monitors.accuracy,
            embedding_std=embedding_std(monitors.embedding),
            kl=kl,
            kl_per_weight=kl / max(posterior.size(q), 1),
            kl_scaled=beta * kl / z,
            beta=beta,
            temperature=temperature.temperature(beta, dataset_size=settings.dataset_size, z=z),
            learning_rate=learning_rate(optimizer_state),
            tau=tau,
            gradient_norm=gradient_norm,
            probe_loss=probe[0],
            probe_accuracy=probe[1],
            skipped=guard.skipped,
            skipped_in_a_row=guard.in_a_row,
            skipped_for=guard.reason,
        )
        return new_state, info

    return step


def _data_term(objective: Objective, state: State, batch: Batch, streams: Streams, settings: Settings):
    """Loss, gradients, statistics, monitors, averaged over draws, micro-batches and devices."""
    layout = settings.layout
    axis = layout.axis_name
    device = 0 if axis is None else jax.lax.axis_index(axis)
    one_draw = axis is None or layout.one_draw
    weights_key = streams.weights if one_draw else jax.random.fold_in(streams.weights, device)
    size = batch.image.shape[0]
    keys = image_keys(streams.views, device * size + jnp.arange(size))
    teacher = layout.gather(state.teacher)

    def piece(trained: tuple[Posterior, dict], stats: dict, index, part: tuple[Batch, Array]):
        q, probe = trained
        draw_key = jax.random.fold_in(weights_key, index // settings.accumulate)
        weights = _draw(draw_key, q, settings)
        drop_path_key = jax.random.fold_in(jax.random.fold_in(streams.drop_path, index), device)
        loss, outcome = objective(weights, stats, teacher, *part, drop_path_key)
        if not probe:
            return loss, (outcome.stats, (loss, outcome.monitors, (None, None)))
        # The probe's loss ends at a stop-gradient: the two parts of the sum have no parameter in common.
        probe_loss, accuracy = probes.loss(layout.gather(probe), outcome.features, part[0].label)
        return loss + probe_loss, (outcome.stats, (loss, outcome.monitors, (probe_loss, accuracy)))

    (stats, (loss, monitors, probe)), gradient = _averaged(
        jax.grad(piece, has_aux=True), state, (batch, keys), settings
    )
    if axis is not None:
        loss, stats, monitors, gradient, probe = jax.lax.pmean((loss, stats, monitors, gradient, probe), axis)
    return loss, gradient, stats, monitors, probe


def _averaged(gradient_of_piece, state: State, batch: tuple[Batch, Array], settings: Settings):
    """Mean over draws x micro-batches, one after the other, so that memory is that of one of them."""
    trained = (state.posterior, state.online.params)
    pieces = settings.draws * settings.accumulate
    if pieces == 1:
        gradient, aux = gradient_of_piece(trained, state.stats, 0, batch)
        return aux, gradient

    parts = _micro_batches(batch, settings.accumulate)

    def evaluate(stats, index):
        part = jax.tree.map(lambda x: x[index % settings.accumulate], parts)
        return gradient_of_piece(trained, stats, index, part)

    def body(carry, index):
        stats, total = carry
        gradient, (stats, shown) = evaluate(stats, index)
        total = jax.tree.map(lambda t, x: t + x / pieces, total, (shown, gradient))
        return (stats, total), None

    gradient, (_, shown) = jax.eval_shape(evaluate, state.stats, 0)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shown, gradient))
    (stats, (shown, gradient)), _ = jax.lax.scan(body, (state.stats, zeros), jnp.arange(pieces))
    return (stats, shown), gradient


def _micro_batches(batch, count: int):
    """[batch, ...] -> [count, batch / count, ...], strided so that each part spans all devices of a shard."""
    size = jax.tree.leaves(batch)[0].shape[0]
    if size % count:
        raise ValueError(f"accumulate={count} does not divide the batch of {size} images (per device)")
    return jax.tree.map(lambda x: jnp.swapaxes(x.reshape(size // count, count, *x.shape[1:]), 0, 1), batch)


def _draw(key: Array, q: Posterior, settings: Settings) -> tuple[Any, Any]:
    """The weights for each of the two views: one draw for both, or one for each."""

    def draw(key: Array) -> Any:
        return settings.layout.gather(posterior.sample(key, q, place=settings.layout.shard))

    if not settings.draw_per_view:
        weights = draw(key)
        return weights, weights
    first, second = jax.random.split(key)
    return draw(first), draw(second)


def _typed(key: Array) -> Array:
    """Also takes the raw keys of `jax.random.PRNGKey`."""
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
