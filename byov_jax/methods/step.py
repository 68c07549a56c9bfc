"""The training step that all methods share: sample, loss, KL, update, teacher, prior."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from byov_jax.bayes import posterior, stacks, temperature
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.variance import Evidence
from byov_jax.images import image_keys
from byov_jax.methods import guard, objectives, online_probe, teacher
from byov_jax.methods.objectives import Batch, Inputs, Moments, Objective, ViewsFn
from byov_jax.methods.optimizers import learning_rate
from byov_jax.methods.schedules import as_schedule
from byov_jax.methods.state import Info, Settings, State


class Streams(NamedTuple):
    """The random streams of one step."""

    views: Array
    weights: Array
    network: Array


class DataTerm(NamedTuple):
    """Value of the data term and its diagnostics, averaged over draws, micro-batches and devices."""

    loss: Float[Array, ""]
    embedding: Moments | None
    metrics: dict[str, Array]


def make_step(
    objective: Objective, views: ViewsFn, optimizer: optax.GradientTransformation, settings: Settings
) -> Callable[[State, Batch, Array], tuple[State, Info]]:
    """Return the pure function `step(state, batch, key) -> (state, info)`.

    `key` is the root key, the same at every step: each step folds its number into it.
    """
    bayes, optimizer = settings.bayes, optax.with_extra_args_support(optimizer)
    beta_schedule, tau_schedule = as_schedule(bayes.beta), as_schedule(settings.tau)

    def step(state: State, batch: Batch, key: Array) -> tuple[State, Info]:
        streams = Streams(*jax.random.split(jax.random.fold_in(_typed(key), state.step), 3))
        beta, tau = beta_schedule(state.step), tau_schedule(state.step)
        z = _normalizer(state, batch, settings)

        data, (stats, teacher_stats), (gradient, probe_gradient) = _data_term(
            objective, views, state, batch, streams, settings
        )
        q, prior = state.posterior, bayes.prior.moments(state.prior, state.teacher.params)
        kl, kl_gradient = posterior.kl(q, *prior), posterior.kl_gradient(q, *prior)
        total = jax.tree.map(lambda data, kl: data + beta / z * kl, gradient, kl_gradient)

        gradient_norm = optax.tree.norm((total.mean, stacks.stack(total.log_var)))
        accepted, new_guard = guard.check(state.guard, data.loss, kl, gradient_norm, settings.spike)

        def update() -> State:
            loss = data.loss + beta * kl / z
            updates, optimizer_state = optimizer.update(total.mean, state.optimizer, q.mean, value=loss)
            evidence = Evidence(gradient.mean, gradient.log_var, *prior, kl_weight=beta / z)
            log_var, variance_state = bayes.variance.update(evidence, state.variance, q)
            mean = optax.apply_updates(q.mean, updates)
            return state._replace(
                posterior=Posterior(mean, log_var),
                stats=stats,
                teacher=teacher.update(state.teacher, mean, stats, tau, own=teacher_stats),
                prior=bayes.prior.update(state.prior, state.teacher.params, mean, tau),
                optimizer=optimizer_state,
                variance=variance_state,
                online=online_probe.update(state.online, probe_gradient),
            )

        # A rejected step leaves all but the step number and the counters as they were.
        new_state = jax.lax.cond(accepted, update, lambda: state)
        new_state = new_state._replace(step=state.step + 1, guard=new_guard)
        return new_state, Info(
            loss=data.loss,
            metrics=data.metrics,
            embedding_std=None if data.embedding is None else objectives.embedding_std(data.embedding),
            learning_rate=learning_rate(new_state.optimizer),
            tau=tau,
            gradient_norm=gradient_norm,
            skipped=new_guard.skipped,
            skipped_in_a_row=new_guard.in_a_row,
            skipped_for=new_guard.reason,
            **_kl_terms(q, prior, kl, beta, z, bayes.dataset_size),
        )

    return step


def _kl_terms(q: Posterior, prior: tuple, kl: Array, beta, z: float, dataset_size: int) -> dict[str, Any]:
    """Return what `Info` says of the KL."""
    return {
        "kl": kl,
        "kl_per_weight": kl / max(posterior.size(q), 1),
        "kl_scaled": beta * kl / z,
        "beta": beta,
        "temperature": temperature.temperature(beta, dataset_size=dataset_size, z=z),
        "implied_l2": posterior.implied_l2(q, *prior, weight=beta / z),
    }


def _data_term(
    objective: Objective, views: ViewsFn, state: State, batch: Batch, streams: Streams, settings: Settings
) -> tuple[DataTerm, tuple[dict, dict | None], tuple[Posterior, dict]]:
    """Return the data term, the updated statistics of student and teacher, and the gradients.

    The gradients are those of the posterior and of the online probe.
    """
    layout = settings.layout
    axis = layout.axis_name
    device = 0 if axis is None else jax.lax.axis_index(axis)
    one_draw = axis is None or layout.one_draw
    weights_key = streams.weights if one_draw else jax.random.fold_in(streams.weights, device)
    size = batch.image.shape[0]
    keys = image_keys(streams.views, device * size + jnp.arange(size))
    gathered_teacher = layout.gather(state.teacher)

    def loss(trained: tuple[Posterior, dict], index, micro_batch: tuple[Batch, Array]):
        q, probe = trained
        (image, label), image_keys = micro_batch
        augmented = tuple(views(image_keys, image))
        draw_key = jax.random.fold_in(weights_key, index // settings.accumulate)
        weights = _sample(draw_key, q, len(augmented), settings)
        network_key = jax.random.fold_in(jax.random.fold_in(streams.network, index), device)
        inputs = Inputs(augmented, label, state.stats, gathered_teacher, network_key)
        loss, outcome = objective(weights, inputs)
        embedding = None if outcome.embedding is None else objectives.moments(outcome.embedding)
        metrics, total = dict(outcome.metrics), loss
        if probe:
            if outcome.features is None:
                raise ValueError("the online probe needs features, which this objective does not return")
            # The stop-gradient in the probe's loss separates the two terms: they share no parameter.
            found = online_probe.loss(layout.gather(probe), outcome.features, label)
            metrics |= {"probe_loss": found[0], "probe_accuracy": found[1]}
            total = loss + found[0]
        return total, (DataTerm(loss, embedding, metrics), (outcome.stats, outcome.teacher_stats))

    trained = (state.posterior, state.online.params)
    gradient, (data, stats) = _average(jax.grad(loss, has_aux=True), trained, (batch, keys), settings)
    return data, stats, gradient


def _average(gradient_fn, trained, batch: tuple[Batch, Array], settings: Settings):
    """Average over draws x micro-batches, one after the other to save memory, and over devices.

    All of them start from the same statistics, which so move once in a step.
    """
    count, axis = settings.bayes.draws * settings.accumulate, settings.layout.axis_name
    if count == 1:
        result = gradient_fn(trained, 0, batch)
    else:
        micro_batches = _micro_batches(batch, settings.accumulate)

        def evaluate(index):
            micro_batch = jax.tree.map(lambda x: x[index % settings.accumulate], micro_batches)
            return gradient_fn(trained, index, micro_batch)

        def add(total, index):
            term = evaluate(index)
            return jax.tree.map(lambda t, x: t + x / count if _is_float(x) else x, total, term), None

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(evaluate, 0))
        result, _ = jax.lax.scan(add, zeros, jnp.arange(count))
    if axis is None:
        return result
    return jax.tree.map(lambda x: jax.lax.pmean(x, axis) if _is_float(x) else x, result)


def _micro_batches(batch, count: int):
    """[batch, ...] -> [count, batch / count, ...], strided so that each part spans all devices of a shard."""
    size = jax.tree.leaves(batch)[0].shape[0]
    if size % count:
        raise ValueError(f"accumulate={count} does not divide the batch of {size} images (per device)")
    return jax.tree.map(lambda x: jnp.swapaxes(x.reshape(size // count, count, *x.shape[1:]), 0, 1), batch)


def _sample(key: Array, q: Posterior, views: int, settings: Settings) -> tuple[Any, ...]:
    """Return the weights for each view: one draw for all, or one for each."""

    def sample(key: Array) -> Any:
        return settings.layout.gather(posterior.sample(key, q, constrain=settings.layout.shard))

    if settings.bayes.draw_per_view:
        return tuple(sample(key) for key in jax.random.split(key, views))
    return (sample(key),) * views


def _typed(key: Array) -> Array:
    """Convert a raw key of `jax.random.PRNGKey` to a typed key."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _normalizer(state: State, batch: Batch, settings: Settings) -> float:
    axis = settings.layout.axis_name
    devices = 1 if axis is None else jax.lax.axis_size(axis)
    return temperature.normalizer(
        settings.bayes.kl_norm,
        size=posterior.size(state.posterior),
        dataset_size=settings.bayes.dataset_size,
        batch_size=batch.image.shape[0] * devices,
    )
