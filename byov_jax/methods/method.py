"""The training methods, each a `Method(init, step)` of pure functions around one shared step.

    method = methods.byov(student, optimizer, views=views, dataset_size=len(images), beta=..., tau=...)
    state = method.init(key, batch)
    step = jax.jit(method.step, donate_argnums=0)
    state, info = step(state, batch, key)        # the same key at every step

`from_objective` is the general form: a network, an objective, an optimizer, with or without a posterior and a
teacher. BYOL, BYOV and their supervised counterparts are four uses of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from byov_jax import networks, ranges
from byov_jax.bayes import posterior, temperature
from byov_jax.bayes.paths import is_float
from byov_jax.bayes.priors import Prior
from byov_jax.bayes.select import Where
from byov_jax.bayes.variance import VarianceRule
from byov_jax.methods import guard, objectives, online_probe, teacher
from byov_jax.methods.layout import ONE_DEVICE, Layout
from byov_jax.methods.objectives import Batch, Objective, ViewsFn
from byov_jax.methods.schedules import Schedule
from byov_jax.methods.state import POINT_ESTIMATE, Bayes, Info, Settings, State
from byov_jax.methods.step import make_step


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


class Common(TypedDict, total=False):
    """Arguments that all methods share, documented in `from_objective`."""

    accumulate: int
    layout: Layout
    spike: float
    classes: int


def from_objective(
    network: Any,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    views: ViewsFn,
    bayes: Bayes | None = None,
    tau: float | Schedule | None = None,
    accumulate: int = 1,
    layout: Layout = ONE_DEVICE,
    spike: float = 0.0,
    classes: int = 0,
    traits: Traits | None = None,
) -> Method:
    """Train any network on any objective.

    Args:
      network: a Flax module that is called as `network(x, train=True)`; `networks` wraps those of other
        libraries.
      objective: `(weights, inputs) -> (loss, Outcome)`, see `methods.objectives`.
      optimizer: any optax transformation over the network's parameters, or the means of them. Its `update`
        is given the whole loss as `value`, as `optax.contrib.reduce_on_plateau` needs it.
      views: `(image_keys, images) -> (x1, x2, ...)`, such as an `images.Views`.
      bayes: what the posterior is like, how it follows, and its prior; None for point estimates.
      tau: momentum of the EMA teacher and of the teacher priors, a number or a schedule of optimizer steps;
        None for no teacher.
      accumulate: number of sequential micro-batches that the batch is split into, to save memory. A step is
        still one optimizer step, one EMA update, one update of running statistics and one step of every
        schedule. Batch norm, and an objective that compares the images of a batch, see each micro-batch by
        itself; without them, and without dropout, it is exactly the same step.
      layout: placement of arrays on devices, built by `distributed`; the default is one device.
      spike: skip a step whose loss exceeds `spike`, at least 1, times its moving average; 0 disables this
        check. Steps with a loss, KL or gradient that is not finite are always skipped.
      classes: number of classes of an online linear probe behind a stop-gradient; 0 for no probe.
      traits: properties of the method, where they do not follow from the arguments.
    """
    settings = Settings(
        bayes=bayes or POINT_ESTIMATE,
        tau=1.0 if tau is None else tau,
        accumulate=accumulate,
        layout=layout,
        spike=spike,
    )
    _check(settings, classes)
    if settings.bayes.prior.moving or (traits and traits.has_teacher):
        ranges.check(tau=tau)
    traits = traits or Traits(bayes is not None, supervised=False, has_teacher=tau is not None, views=2)

    @jax.jit
    def init(key: Array, batch: Batch) -> State:
        keys = jax.random.split(jax.random.key(0), batch.image.shape[0])
        view = jax.eval_shape(views, keys, batch.image)[0]
        output, variables = network.init_with_output(key, jnp.zeros((1, *view.shape[1:]), view.dtype))
        params = variables.pop("params")
        q = posterior.point(_at_least_float32(params))
        if bayes is not None:
            roles = networks.roles(network, view) if bayes.where in ("no_conv", "linear_only") else None
            q = posterior.init(params, bayes.where, bayes.log_var, roles=roles)
        initial_teacher = teacher.init(network, q.mean, variables) if traits.has_teacher else teacher.none()
        return State(
            step=jnp.zeros((), jnp.int32),
            posterior=q,
            stats=variables,
            teacher=initial_teacher,
            prior=settings.bayes.prior.init(q, initial_teacher.params),
            optimizer=optimizer.init(q.mean),
            variance=settings.bayes.variance.init(q),
            online=online_probe.init(output.encoder.shape[-1], classes) if classes else online_probe.none(),
            guard=guard.init(),
        )

    # Outside jit, where a scan of closures would be compiled at every call, the step is one program as well.
    step = jax.jit(make_step(objective, views, optimizer, settings), inline=True)
    return Method(init, step, traits)


def byov(
    student: Any,
    optimizer: optax.GradientTransformation,
    *,
    views: ViewsFn,
    dataset_size: int,
    beta: float | Schedule,
    tau: float | Schedule,
    prior: Prior | None = None,
    variance: VarianceRule | None = None,
    kl_norm: str = "params",
    where: Where = "all",
    log_var: float = -10.0,
    draws: int = 1,
    draw_per_view: bool = False,
    **others: Unpack[Common],
) -> Method:
    """Bootstrap Your Own Variance: BYOL with a Bayesian student.

    Minimises `E_q[L] + beta * KL(q || prior) / Z`, with L the symmetrised cosine loss (summed over the two
    directions, in [0, 8]); the teacher is an EMA of the posterior *mean*.

    Args:
      student: a `networks.Student` (encoder, projector, predictor).
      optimizer: of the means: `optimizers.adamw`, `optimizers.lars`, or any optax transformation.
      views: `(image_keys, images) -> (x1, x2)`, such as an `images.Views`; further views are predicted too.
      dataset_size: number of training images N, which sets the temperature, and Z for two normalisers.
      beta: weight of the KL, a number or a schedule of optimizer steps.
      tau: momentum of the teacher, a number or a schedule of optimizer steps.
      prior: `priors.standard()` (the default), `.gaussian(...)`, `.teacher_mean()` or `.teacher_moments()`.
      variance: the rule that the log-variances follow: `variance.adam(1e-3)` by default.
      kl_norm: Z: `"params"` (mean KL per weight), `"dataset"` (the exact ELBO), `"batches"` or `"none"`.
      where: which parameters are Bayesian, as in `posterior.init`.
      log_var: initial log-variance of the Bayesian parameters, in [-100, 0].
      draws: weight draws per step; the loss is averaged over them.
      draw_per_view: draw separate weights for the two views, instead of one draw for both.
      **others: `accumulate`, `layout`, `spike` and `classes`, as in `from_objective`.
    """
    bayes = _bayes(dataset_size, beta, prior, variance, kl_norm, where, log_var, draws, draw_per_view)
    objective = objectives.bootstrap(student)
    return from_objective(
        student, objective, optimizer, views=views, bayes=bayes, tau=tau, traits=TRAITS["byov"], **others
    )


def byol(
    student: Any,
    optimizer: optax.GradientTransformation,
    *,
    views: ViewsFn,
    tau: float | Schedule,
    **others: Unpack[Common],
) -> Method:
    """Bootstrap Your Own Latent, the deterministic baseline. Args as in `byov`."""
    objective = objectives.bootstrap(student)
    return from_objective(
        student, objective, optimizer, views=views, tau=tau, traits=TRAITS["byol"], **others
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
    variance: VarianceRule | None = None,
    kl_norm: str = "params",
    where: Where = "all",
    log_var: float = -10.0,
    draws: int = 1,
    **others: Unpack[Common],
) -> Method:
    """Supervised Bayes by Backprop: cross-entropy plus KL.

    Args as in `byov`, with a `networks.Classifier`. In place of a teacher, the teacher priors use a moving
    average of the posterior mean with momentum `tau`.
    """
    bayes = _bayes(dataset_size, beta, prior, variance, kl_norm, where, log_var, draws)
    objective = objectives.classification(classifier)
    traits = TRAITS["supervised_bbb"]
    return from_objective(
        classifier, objective, optimizer, views=views, bayes=bayes, tau=tau, traits=traits, **others
    )


def supervised(
    classifier: Any, optimizer: optax.GradientTransformation, *, views: ViewsFn, **others: Unpack[Common]
) -> Method:
    """Plain supervised training with the cross-entropy. Args as in `byov`, with a `networks.Classifier`."""
    objective = objectives.classification(classifier)
    return from_objective(
        classifier, objective, optimizer, views=views, traits=TRAITS["supervised"], **others
    )


def _at_least_float32(params: Any) -> Any:
    """Convert weights of 16 bits to float32, in which small updates are not lost: as `posterior.init`."""

    def convert(leaf):
        return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) if is_float(leaf) else leaf

    return jax.tree.map(convert, params)


def _bayes(dataset_size, beta, prior, variance, *others: Any) -> Bayes:
    """Return a `Bayes` with the default prior and variance rule in place of None."""
    bayes = Bayes(dataset_size, beta)
    return Bayes(dataset_size, beta, prior or bayes.prior, variance or bayes.variance, *others)


def _check(settings: Settings, classes: int) -> None:
    bayes = settings.bayes
    for name, kind, example in (("prior", Prior, "standard"), ("variance", VarianceRule, "adam")):
        if not isinstance(getattr(bayes, name), kind):
            module = "priors" if name == "prior" else name
            given = getattr(bayes, name)
            raise ValueError(f"{name}={given!r} must be a {kind.__name__}, such as {module}.{example}()")
    temperature.normalizer(bayes.kl_norm, size=1, dataset_size=1, batch_size=1)  # raises for other names
    ranges.check(
        dataset_size=bayes.dataset_size,
        beta=bayes.beta,
        log_var=bayes.log_var,
        draws=bayes.draws,
        accumulate=settings.accumulate,
        spike=settings.spike,
        tau=settings.tau,
        classes=classes,
    )
