"""The four training methods, each a pair of pure functions `Method(init, step)` around one shared step.

    method = methods.byov(student, optimizer, views=views, dataset_size=len(images), beta=..., tau=...)
    state = method.init(key, batch)
    step = jax.jit(method.step, donate_argnums=0)
    state, info = step(state, batch, key)        # the same key at every step

BYOL is BYOV whose posterior is a point; supervised BBB is BYOV with labels in place of a teacher.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from byov_jax.bayes import posterior, priors, temperature
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.priors import Prior
from byov_jax.bayes.select import Where
from byov_jax.methods import guard, objectives, online_probe, schedules, teacher
from byov_jax.methods.layout import Layout
from byov_jax.methods.objectives import Batch, Objective, ViewsFn
from byov_jax.methods.schedules import Schedule
from byov_jax.methods.step import Info, Settings, State, make_step

ONE_DEVICE = Layout()


class Method(NamedTuple):
    """A training method.

    Attributes:
      init: `(key, batch) -> State`; of the batch only shapes and dtypes matter.
      step: `(state, batch, key) -> (State, Info)`, pure; pass the same root key at every step, which
        folds its own number into it. Compile it with `jax.jit(method.step, donate_argnums=0)`.
    """

    init: Callable[[Array, Batch], State]
    step: Callable[[State, Batch, Array], tuple[State, Info]]


def byov(
    student: Any,
    optimizer: optax.GradientTransformation,
    *,
    views: ViewsFn,
    dataset_size: int,
    beta: float | Schedule,
    tau: float | Schedule,
    prior: Prior | None = None,
    kl_norm: str = "params",
    where: Where = "all",
    log_var: float = -10.0,
    draws: int = 1,
    draw_per_view: bool = False,
    accumulate: int = 1,
    layout: Layout = ONE_DEVICE,
    spike: float = 0.0,
    classes: int = 0,
) -> Method:
    """Bootstrap Your Own Variance: BYOL with a Bayesian student.

    Minimises `E_q[L] + beta * KL(q || prior) / Z`, with L the symmetrised cosine loss (summed over the two
    directions, in [0, 8]); the teacher is an EMA of the posterior *mean*.

    Args:
      student: a `networks.Student` (encoder, projector, predictor).
      optimizer: from `optimizer.adamw` or `optimizer.lars`, or any optax transformation over a `Posterior`.
      views: `(image_keys, images) -> (x1, x2)`, such as an `images.Views`.
      dataset_size: number of training images N; sets the temperature, and Z for two of the normalisers.
      beta: weight of the KL, a number or a schedule of optimizer steps.
      tau: momentum of the teacher, a number or a schedule of optimizer steps.
      prior: `priors.standard()` (the default), `.teacher_mean()` or `.teacher_moments()`.
      kl_norm: Z: `"params"` (mean KL per weight), `"dataset"` (the exact ELBO), `"batches"` or `"none"`.
      where: which parameters are Bayesian, as in `posterior.init`.
      log_var: their initial log-variance.
      draws: weight draws per step; the loss is averaged over them.
      draw_per_view: draw separate weights for the two views, instead of one draw for both.
      accumulate: micro-batches that the batch is split into, one after the other, to save memory. A step
        remains one optimizer step, one EMA update and one tick of every schedule.
      layout: how devices share the work: `distributed.layout.sharded(mesh)`, `.pmapped(name)`; see
        `train.parallel`, which builds the step for them.
      spike: skip a step whose loss is more than so many times its moving average; 0 for never. Steps whose
        loss, KL or gradient is not finite are always skipped.
      classes: of the batches' labels, for an online linear probe that follows training behind a
        stop-gradient; 0 for none.
    """
    return _method(
        student,
        optimizer,
        objective=objectives.bootstrap(student, views),
        views=views,
        posterior_of=lambda params: posterior.init(params, where, log_var),
        teacher_of=teacher.init,
        prior=prior or priors.standard(),
        settings=_settings(beta, tau, kl_norm, dataset_size, draws, draw_per_view, accumulate, layout, spike),
        classes=classes,
    )


def byol(
    student: Any,
    optimizer: optax.GradientTransformation,
    *,
    views: ViewsFn,
    tau: float | Schedule,
    accumulate: int = 1,
    layout: Layout = ONE_DEVICE,
    spike: float = 0.0,
    classes: int = 0,
) -> Method:
    """Bootstrap Your Own Latent, the deterministic baseline. Args as in `byov`."""
    return _method(
        student,
        optimizer,
        objective=objectives.bootstrap(student, views),
        views=views,
        posterior_of=posterior.point,
        teacher_of=teacher.init,
        prior=priors.standard(),
        settings=_settings(0.0, tau, "none", 1, 1, False, accumulate, layout, spike),
        classes=classes,
    )


def supervised_bbb(
    classifier: Any,
    optimizer: optax.GradientTransformation,
    *,
    views: ViewsFn,
    dataset_size: int,
    beta: float | Schedule,
    tau: float | Schedule = 0.99,
    prior: Prior | None = None,
    kl_norm: str = "params",
    where: Where = "all",
    log_var: float = -10.0,
    draws: int = 1,
    accumulate: int = 1,
    layout: Layout = ONE_DEVICE,
    spike: float = 0.0,
) -> Method:
    """Supervised Bayes by Backprop: cross-entropy plus KL.

    Args as in `byov`, with a `networks.Classifier`. There is no teacher: `tau` is the momentum of the
    average that the teacher priors then keep for themselves.
    """
    return _method(
        classifier,
        optimizer,
        objective=objectives.classification(classifier, views),
        views=views,
        posterior_of=lambda params: posterior.init(params, where, log_var),
        teacher_of=lambda mean, stats: teacher.none(),
        prior=prior or priors.standard(),
        settings=_settings(beta, tau, kl_norm, dataset_size, draws, False, accumulate, layout, spike),
    )


def supervised(
    classifier: Any,
    optimizer: optax.GradientTransformation,
    *,
    views: ViewsFn,
    accumulate: int = 1,
    layout: Layout = ONE_DEVICE,
    spike: float = 0.0,
) -> Method:
    """Plain supervised training with the cross-entropy. Args as in `byov`, with a `networks.Classifier`."""
    return _method(
        classifier,
        optimizer,
        objective=objectives.classification(classifier, views),
        views=views,
        posterior_of=posterior.point,
        teacher_of=lambda mean, stats: teacher.none(),
        prior=priors.standard(),
        settings=_settings(0.0, 1.0, "none", 1, 1, False, accumulate, layout, spike),
    )


def _method(
    module: Any,
    optimizer: optax.GradientTransformation,
    *,
    objective: Objective,
    views: ViewsFn,
    posterior_of: Callable[[dict], Posterior],
    teacher_of: Callable[[dict, dict], teacher.Teacher],
    prior: Prior,
    settings: Settings,
    classes: int = 0,
) -> Method:
    @jax.jit
    def init(key: Array, batch: Batch) -> State:
        keys = jax.random.split(jax.random.key(0), batch.image.shape[0])
        view, _ = jax.eval_shape(views, keys, batch.image)
        output, variables = module.init_with_output(key, jnp.zeros((1, *view.shape[1:]), view.dtype))
        params = variables.pop("params")
        q = posterior_of(params)
        initial_teacher = teacher_of(q.mean, variables)
        return State(
            step=jnp.zeros((), jnp.int32),
            posterior=q,
            stats=variables,
            teacher=initial_teacher,
            prior=prior.init(q, initial_teacher.params),
            optimizer=optimizer.init(q),
            online=online_probe.init(output.encoder.shape[-1], classes) if classes else online_probe.none(),
            guard=guard.init(),
        )

    return Method(init, make_step(objective, optimizer, prior, settings))


def _settings(beta, tau, kl_norm, dataset_size, draws, draw_per_view, accumulate, layout, spike) -> Settings:
    for name, count in (("dataset_size", dataset_size), ("draws", draws), ("accumulate", accumulate)):
        if count < 1:
            raise ValueError(f"{name}={count!r} must be at least 1")
    temperature.normalizer(kl_norm, size=1, dataset_size=1, batch_size=1)
    if not callable(beta) and not beta >= 0.0:
        raise ValueError(f"beta={beta!r} must not be negative")
    if not spike >= 0.0:
        raise ValueError(f"spike={spike!r} must be 0, or how many times its average a loss may be")
    if not callable(tau) and not 0.0 <= tau <= 1.0:
        raise ValueError(f"tau={tau!r} must lie in [0, 1]")
    return Settings(
        beta=beta if callable(beta) else schedules.constant(beta),
        tau=tau if callable(tau) else schedules.constant(tau),
        kl_norm=kl_norm,
        dataset_size=dataset_size,
        draws=draws,
        draw_per_view=draw_per_view,
        accumulate=accumulate,
        layout=layout,
        spike=spike,
    )
