"""The four training methods, each a `Method(init, step)` of pure functions around one shared step.

    method = methods.byov(student, optimizer, views=views, dataset_size=len(images), beta=..., tau=...)
    state = method.init(key, batch)
    step = jax.jit(method.step, donate_argnums=0)
    state, info = step(state, batch, key)        # the same key at every step

BYOL is BYOV with point estimates; supervised BBB is BYOV with labels instead of a teacher.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from byov_jax.bayes import posterior, priors, temperature
from byov_jax.bayes.priors import Prior
from byov_jax.bayes.select import Where
from byov_jax.methods import guard, objectives, online_probe, teacher
from byov_jax.methods.layout import ONE_DEVICE, Layout
from byov_jax.methods.objectives import Batch, ViewsFn
from byov_jax.methods.schedules import Schedule
from byov_jax.methods.step import Info, Settings, State, make_step


class Traits(NamedTuple):
    """Properties of a training method.

    Attributes:
      bayesian: trains a posterior, with its KL to a prior in the loss.
      supervised: needs labels, and trains a classifier.
      has_teacher: keeps an EMA teacher.
      views: number of augmented views of each image that a step uses.
    """

    bayesian: bool
    supervised: bool
    has_teacher: bool
    views: int


TRAITS = {
    "byol": Traits(bayesian=False, supervised=False, has_teacher=True, views=2),
    "byov": Traits(bayesian=True, supervised=False, has_teacher=True, views=2),
    "supervised": Traits(bayesian=False, supervised=True, has_teacher=False, views=1),
    "supervised_bbb": Traits(bayesian=True, supervised=True, has_teacher=False, views=1),
}
"""The methods' traits by name."""


class Method(NamedTuple):
    """A training method.

    Attributes:
      init: `(key, batch) -> State`; only the shapes and dtypes of the batch matter.
      step: `(state, batch, key) -> (State, Info)`, pure. Pass the same root key at every step: the step folds
        its number into it. Compile with `jax.jit(method.step, donate_argnums=0)`.
      traits: the method's properties.
    """

    init: Callable[[Array, Batch], State]
    step: Callable[[State, Batch, Array], tuple[State, Info]]
    traits: Traits


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
      optimizer: `optimizers.adamw`, `optimizers.lars`, or any optax transformation over a `Posterior`.
      views: `(image_keys, images) -> (x1, x2)`, such as an `images.Views`.
      dataset_size: number of training images N, which sets the temperature, and Z for two normalisers.
      beta: weight of the KL, a number or a schedule of optimizer steps.
      tau: momentum of the teacher, a number or a schedule of optimizer steps.
      prior: `priors.standard()` (the default), `.teacher_mean()` or `.teacher_moments()`.
      kl_norm: Z: `"params"` (mean KL per weight), `"dataset"` (the exact ELBO), `"batches"` or `"none"`.
      where: which parameters are Bayesian, as in `posterior.init`.
      log_var: initial log-variance of the Bayesian parameters.
      draws: weight draws per step; the loss is averaged over them.
      draw_per_view: draw separate weights for the two views, instead of one draw for both.
      accumulate: number of sequential micro-batches that the batch is split into, to save memory. A step is
        still one optimizer step, one EMA update and one step of every schedule.
      layout: placement of arrays on devices, built by `distributed`; the default is one device.
      spike: skip a step whose loss exceeds `spike` times its moving average; 0 disables this check. Steps
        with a loss, KL or gradient that is not finite are always skipped.
      classes: number of classes of an online linear probe behind a stop-gradient; 0 for no probe.
    """
    return _build(
        "byov",
        student,
        optimizer,
        views=views,
        where=where,
        log_var=log_var,
        prior=prior,
        classes=classes,
        settings=Settings(
            beta=beta,
            tau=tau,
            kl_norm=kl_norm,
            dataset_size=dataset_size,
            draws=draws,
            draw_per_view=draw_per_view,
            accumulate=accumulate,
            layout=layout,
            spike=spike,
        ),
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
    settings = Settings(tau=tau, accumulate=accumulate, layout=layout, spike=spike)
    return _build("byol", student, optimizer, views=views, classes=classes, settings=settings)


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

    Args as in `byov`, with a `networks.Classifier`. In place of a teacher, the teacher priors use a moving
    average of the posterior mean with momentum `tau`.
    """
    return _build(
        "supervised_bbb",
        classifier,
        optimizer,
        views=views,
        where=where,
        log_var=log_var,
        prior=prior,
        settings=Settings(
            beta=beta,
            tau=tau,
            kl_norm=kl_norm,
            dataset_size=dataset_size,
            draws=draws,
            accumulate=accumulate,
            layout=layout,
            spike=spike,
        ),
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
    settings = Settings(accumulate=accumulate, layout=layout, spike=spike)
    return _build("supervised", classifier, optimizer, views=views, settings=settings)


def _build(
    name: str,
    module: Any,
    optimizer: optax.GradientTransformation,
    *,
    views: ViewsFn,
    settings: Settings,
    where: Where = "all",
    log_var: float = -10.0,
    prior: Prior | None = None,
    classes: int = 0,
) -> Method:
    _check(settings)
    traits = TRAITS[name]
    prior = prior or priors.standard()
    objective = (objectives.classification if traits.supervised else objectives.bootstrap)(module, views)

    @jax.jit
    def init(key: Array, batch: Batch) -> State:
        keys = jax.random.split(jax.random.key(0), batch.image.shape[0])
        view, _ = jax.eval_shape(views, keys, batch.image)
        output, variables = module.init_with_output(key, jnp.zeros((1, *view.shape[1:]), view.dtype))
        params = variables.pop("params")
        q = posterior.init(params, where, log_var) if traits.bayesian else posterior.point(params)
        initial_teacher = teacher.init(q.mean, variables) if traits.has_teacher else teacher.none()
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

    return Method(init, make_step(objective, optimizer, prior, settings), traits)


def _check(settings: Settings) -> None:
    for name in ("dataset_size", "draws", "accumulate"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name}={getattr(settings, name)!r} must be at least 1")
    temperature.normalizer(settings.kl_norm, size=1, dataset_size=1, batch_size=1)  # raises for other names
    if not callable(settings.beta) and not settings.beta >= 0.0:
        raise ValueError(f"beta={settings.beta!r} must not be negative")
    if not settings.spike >= 0.0:
        raise ValueError(f"spike={settings.spike!r} must not be negative; 0 disables the check")
    if not callable(settings.tau) and not 0.0 <= settings.tau <= 1.0:
        raise ValueError(f"tau={settings.tau!r} must lie in [0, 1]")
