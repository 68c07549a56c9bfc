"""Build from a config what it describes: the network, the views, the method, and the runner on devices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from byov_jax import distributed, images, methods, networks
from byov_jax.bayes import priors
from byov_jax.bayes import variance as variance_rules
from byov_jax.data import registry
from byov_jax.data.dataset import Dataset, Unlabelled
from byov_jax.distributed import Runner
from byov_jax.errors import ConfigError
from byov_jax.images.views import Views
from byov_jax.methods import Method, optimizers, schedules
from byov_jax.methods.layout import Layout
from byov_jax.methods.objectives import Batch
from byov_jax.role import Role
from byov_jax.training.config import Config

AnyDataset = Dataset | Unlabelled

PRIORS: dict[str, Callable] = {
    "standard": priors.standard,
    "teacher_mean": priors.teacher_mean,
    "teacher_moments": priors.teacher_moments,
}
VIEWS: dict[str, Callable[..., Views]] = {
    "imagenet": images.imagenet,
    "small_color": images.small_color,
    "small_gray": images.small_gray,
}
OPTIMIZERS: dict[str, Callable] = {"adamw": optimizers.adamw, "lars": optimizers.lars}


def dataset(config: Config, source: str | None = None) -> AnyDataset:
    """Load the data of a config, or other data (`source`) in the same way."""
    data = config.data
    return registry.load_dataset(
        source or data.source,
        loader=data.loader,
        resize=data.resize,
        size=views(config).first.size or 0,
        on_error=data.on_error,
    )


def network(config: Config) -> Any:
    """Return the Flax module: a `Student`, or a `Classifier` for supervised methods."""
    if config.traits.supervised:
        return networks.Classifier(_encoder(config), classes=config.data.classes)
    heads = (
        _call(part, networks.MLP, head.to_dict() | _compute_type(config) | _batch_axis(config))
        for part, head in (("projector", config.projector), ("predictor", config.predictor))
    )
    return networks.Student(_encoder(config), *heads)


def roles(config: Config, module: Any) -> dict[str, Role]:
    """Return what every parameter of a network is, by path."""
    return networks.roles(module, jax.ShapeDtypeStruct((1, *config.data.image), jnp.float32))


def views(config: Config) -> Views:
    """Return the two augmentations, with the mean and std that normalise images."""
    return _call("views", VIEWS[config.views.name], config.views.arguments())


def batch(config: Config) -> Batch:
    """Return the shapes of a global batch: images, or one crop per view taken by the host."""
    crops = (config.traits.views,) if config.data.loader == "stream" else ()
    shape = (config.batch_size, *crops, *config.data.image)
    label = (lambda: jnp.zeros(shape[:1], jnp.int32)) if config.data.classes else lambda: None
    return jax.eval_shape(lambda: Batch(jnp.zeros(shape, jnp.uint8), label()))


def method(config: Config, module: Any, layout: Layout = methods.ONE_DEVICE) -> Method:
    """Return the training method for `module`, from `network`, on devices that share the work by `layout`."""
    traits = config.traits
    arguments: dict[str, Any] = {
        "views": views(config),
        "accumulate": config.accumulate,
        "layout": layout,
        "spike": config.guard.spike,
    }
    if traits.has_teacher:
        arguments |= {"tau": tau_schedule(config), "classes": config.data.classes}
        if traits.bayesian:
            arguments["draw_per_view"] = config.draw_per_view
    if traits.bayesian:
        arguments |= {
            "dataset_size": config.data.size,
            "beta": beta_schedule(config),
            "prior": PRIORS[config.prior](),
            "variance": _variance(config),
            "kl_norm": config.kl_norm,
            "where": config.where,
            "log_var": config.log_var,
            "draws": config.draws,
        }
    return getattr(methods, config.method)(module, _optimizer(config), **arguments)


def runner(config: Config, *, mode: str | None = None, devices: Sequence[jax.Device] | None = None) -> Runner:
    """Return the method of a config, whose data are filled in, on devices.

    Args:
      config: what to train.
      mode: "auto", "plain", "sharded" or "pmap"; that of the config if None.
      devices: all devices of all processes if None.
    """
    return distributed.build(
        lambda layout: method(config, network(config), layout),
        batch(config),
        mode=mode or config.parallel.mode,
        devices=devices,
        one_draw=config.parallel.one_draw,
        prng=config.prng,
    )


def learning_rate_schedule(config: Config) -> schedules.Schedule:
    """Return the learning rate of the means by step."""
    optimizer = config.optimizer
    return schedules.warmup_cosine(optimizer.learning_rate, optimizer.warmup, config.steps)


def beta_schedule(config: Config) -> schedules.Schedule:
    """Return the weight of the KL by step."""
    return schedules.cosine(config.beta_start, config.beta_end, config.beta_steps or config.steps)


def tau_schedule(config: Config) -> schedules.Schedule:
    """Return the momentum of the teacher by step."""
    return schedules.ema_cosine(config.tau, config.steps)


def _encoder(config: Config) -> Any:
    arguments = config.encoder.arguments() | _compute_type(config)
    if config.encoder.name == "resnet":
        return _call("encoder", networks.resnet, arguments | _batch_axis(config))
    if "size" in arguments:
        size = arguments.pop("size")
        return _call("encoder", lambda **fields: networks.vit(size, **fields), arguments)
    return _call("encoder", networks.ViT, arguments)


def _compute_type(config: Config) -> dict[str, Any]:
    return {} if config.dtype == "float32" else {"dtype": config.dtype}


def _batch_axis(config: Config) -> dict[str, Any]:
    """Under pmap batch norms need the name of the axis; under jit they are global without it."""
    return {"axis_name": distributed.AXIS} if config.parallel.mode == "pmap" else {}


def _optimizer(config: Config) -> Any:
    arguments = config.optimizer.arguments()
    del arguments["learning_rate"], arguments["warmup"]
    build = OPTIMIZERS[config.optimizer.name]
    return _call("optimizer", lambda **others: build(learning_rate_schedule(config), **others), arguments)


def _variance(config: Config) -> Any:
    """Return the rule that log_var follows, on the schedule of the means' learning rate."""
    arguments = config.variance.arguments()
    if config.variance.name == "fixed":
        return variance_rules.fixed()
    schedule, peak = learning_rate_schedule(config), arguments.pop("learning_rate")
    ratio = peak / config.optimizer.learning_rate
    return variance_rules.adam(lambda step: ratio * schedule(step), **arguments)


def _call(section: str, function: Callable, arguments: Mapping[str, Any]) -> Any:
    """Call with the arguments of a section; what they do not allow is an error that names the section."""
    try:
        return function(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config.{section}: {error}") from None
