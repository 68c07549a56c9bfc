"""Every public name of the package with a call of it, or the reason why it computes nothing."""

import ast
import inspect
from types import FunctionType, ModuleType

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tiny
import trainings
from flax import nnx

import byov_jax as byov
from byov_jax import images, methods, networks, optimizers, posterior, priors, schedules, variance
from byov_jax.evaluation.suite import Options
from tools import transformations_table

KEY = jax.random.key(0)
BATCH = tiny.batch(4)
X = jnp.asarray(BATCH.image, jnp.float32) / 255
COLOR = jnp.asarray(np.random.default_rng(0).random((4, 8, 8, 3)), jnp.float32)


def exported():
    """Yield name and value of every public function and class, and of the methods of the classes."""
    for name, value in _exports(byov):
        if not isinstance(value, ModuleType):
            yield from _with_members(name, value)
            continue
        for inner, member in _exports(value):
            yield from _with_members(f"{name}.{inner}", member)


def _exports(module):
    """What a package's `__init__` imports under its own name, or what another module defines."""
    if hasattr(module, "__path__"):
        tree = ast.parse(inspect.getsource(module))
        aliases = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
        names = [alias.asname for alias in aliases if alias.asname == alias.name]
        found = [(name, getattr(module, name)) for name in names]
    else:
        own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        found = [
            (name, value)
            for name, value in own.items()
            if getattr(value, "__module__", None) == module.__name__
        ]
    return [(name, value) for name, value in found if callable(value) or isinstance(value, ModuleType)]


def _with_members(name, value):
    if not inspect.isclass(value):
        return [name]
    own = [
        member
        for member, function in vars(value).items()
        if isinstance(function, FunctionType | staticmethod | property)
        and (member == "__call__" or not member.startswith("_"))
    ]
    if issubclass(value, nn.Module):
        own = ["init", "apply", *(member for member in own if member not in ("setup", "__call__"))]
    return [f"{name}.{member}" for member in own] or [name]


def _module(make, x=X, **how):
    """Examples of `init` and `apply` of a network."""

    def init():
        return lambda: make().init({"params": KEY, "weights": KEY}, x)

    def apply():
        variables = jax.jit(make().init)(KEY, x)
        return lambda: make().apply(variables, x, **how)

    return {"init": init, "apply": apply}


def _modules(**makes):
    return {
        f"{name}.{method}": example
        for name, arguments in makes.items()
        for method, example in _module(*arguments).items()
    }


def _method_of(make, method):
    """An example of another method of a network."""

    def example():
        variables = jax.jit(make().init)(KEY, X)
        return lambda: make().apply(variables, X, method=method)

    return example


def _bayesian():
    return byov.Bayesian(tiny.student())


def _bayesian_apply(*arguments, **how):
    def example():
        variables = jax.jit(_bayesian().init)(KEY, X)
        return lambda: _bayesian().apply(variables, *arguments, X, rngs={"weights": KEY}, **how)

    return example


def _params():
    return jax.jit(tiny.student().init)(KEY, X)["params"]


def _of_arguments(call, arguments):
    def example():
        prepared = jax.tree.map(jnp.asarray, arguments(0))
        return lambda: call(*prepared)

    return example


def _of_params(call):
    def example():
        params = _params()
        return lambda: call(params)

    return example


def _posterior():
    return jax.block_until_ready(posterior.init(_params()))


def _of_posterior(function):
    def example():
        q = _posterior()
        return lambda: function(q)

    return example


def _prior(make):
    """All three functions of a prior that is made anew at every call."""

    def example():
        q = _posterior()
        teacher = {name: q.mean[name] for name in ("encoder", "projector")}

        def call():
            prior = make()
            state = prior.init(q, teacher)
            return prior.moments(state, teacher), prior.update(state, teacher, q.mean, 0.9)

        return call

    return example


def _rule(make):
    def example():
        q = _posterior()

        def call():
            rule = make()
            evidence = variance.Evidence(q.mean, q.log_var, 0.0, 0.0, 0.1)
            return rule.update(evidence, rule.init(q), q)

        return call

    return example


def _optimizer(make):
    def example():
        params = _params()

        def call():
            optimizer = make()
            return optimizer.update(params, optimizer.init(params), params)

        return call

    return example


def _mixed_optimizer():
    params = jax.jit(_bayesian().init)(KEY, X)["params"]

    def call():
        optimizer = optimizers.bayesian(optax.sgd(0.1), optax.adam(0.1))
        return optimizer.update(params, optimizer.init(params), params)

    return call


def _learning_rate():
    params = _params()
    state = optimizers.adamw(0.1).init(params)
    return lambda: optimizers.learning_rate(state)


def _method(make):
    """Start a training and take a step outside jit, with a method made once."""

    def example():
        method = make()

        def call():
            state = method.init(KEY, BATCH)
            return method.step(state, BATCH, KEY)

        return call

    return example


def _from_objective():
    student = tiny.student()
    objective = methods.objectives.bootstrap(student)
    return methods.from_objective(student, objective, optax.sgd(0.1), views=tiny.exposures, tau=0.9)


def _classification(name, **arguments):
    make = getattr(methods, name)
    return lambda: make(tiny.classifier(), optax.adam(0.1), views=tiny.exposures, **arguments)


def _info():
    method = tiny.byol_method()
    _, info = jax.jit(method.step)(method.init(KEY, BATCH), BATCH, KEY)
    return lambda: [jnp.asarray(value) for value in info.to_dict().values()]


def _augment():
    view = images.View(size=8)
    return lambda: images.augment(KEY, COLOR[0], view)


def _views(call):
    def example():
        keys = images.image_keys(KEY, jnp.arange(4))
        return lambda: call(keys)

    return example


class _NNX(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(64, 8, rngs=rngs)

    def __call__(self, x):
        return self.layer(x.reshape(len(x), -1))


class _Equinox(eqx.Module):
    layer: eqx.nn.Linear

    def __init__(self, key):
        self.layer = eqx.nn.Linear(64, 8, key=key)

    def __call__(self, x):
        return self.layer(x.reshape(-1))


class _Autoencoder(nn.Module):
    def setup(self):
        self.dense = nn.Dense(8)

    def encode(self, x):
        return self.dense(x.reshape(len(x), -1))


def _foreign(make):
    """Initialise and apply the network of another library."""

    def example():
        network = make()

        def call():
            variables = network.init(KEY, X)
            return network.apply(variables, X)

        return call

    return example


def _of_model(call):
    """An example given a trained model, and images and labels of its data."""
    return lambda model: lambda: call(model, trainings.DATA.test.image, trainings.DATA.test.label)


def _small_resnet():
    return networks.ResNet(stages=(1, 1), bottleneck=False, width=8, stem="small", norm="batch")


EXAMPLES = {
    **{
        name: _of_arguments(call, arguments)
        for name, (call, arguments) in transformations_table.EXAMPLES.items()
    },
    **_modules(
        **{
            "Bayesian": (_bayesian, X),
            "networks.Student": (tiny.student, X),
            "networks.Classifier": (tiny.classifier, X),
            "networks.MLP": (lambda: networks.MLP((8, 8)), X.reshape(4, -1)),
            "networks.ViT": (tiny.vit, X),
            "networks.ResNet": (_small_resnet, COLOR),
            "networks.FromMethod": (lambda: networks.FromMethod(_Autoencoder(), "encode"), X),
        }
    ),
    "Bayesian.apply": _bayesian_apply(),
    "Bayesian.call": _bayesian_apply("project", method="call"),
    "networks.Student.project": _method_of(tiny.student, "project"),
    "networks.ViT.block_features": _method_of(tiny.vit, "block_features"),
    "networks.from_nnx": _foreign(lambda: networks.from_nnx(_NNX)),
    "networks.from_equinox": _foreign(lambda: networks.from_equinox(_Equinox)),
    "networks.roles": lambda: lambda: list(networks.roles(tiny.student(), X)) and None,
    "posterior.init": _of_params(posterior.init),
    "posterior.sample": _of_posterior(lambda q: posterior.sample(KEY, q)),
    "posterior.kl": _of_posterior(posterior.kl),
    "posterior.snr": _of_posterior(posterior.snr),
    "layer_statistics": _of_posterior(byov.layer_statistics),
    "priors.standard": _prior(priors.standard),
    "priors.gaussian": _prior(lambda: priors.gaussian({"": 0.0}, {"bias": 0.1, "": 1.0})),
    "priors.teacher_mean": _prior(priors.teacher_mean),
    "priors.teacher_moments": _prior(priors.teacher_moments),
    "variance.gradient": _rule(lambda: variance.gradient(optax.sgd(0.1))),
    "variance.adam": _rule(lambda: variance.adam(schedules.cosine(0.1, 0.0, 10))),
    "variance.fixed": _rule(variance.fixed),
    "optimizers.adamw": _optimizer(lambda: optimizers.adamw(0.1, weight_decay=0.1, clip_norm=1.0)),
    "optimizers.lars": _optimizer(
        lambda: optimizers.lars(schedules.warmup_cosine(0.1, 2, 10), clip_norm=1.0)
    ),
    "optimizers.kernels": _of_params(optimizers.kernels),
    "optimizers.bayesian": _mixed_optimizer,
    "optimizers.learning_rate": _learning_rate,
    "schedules.constant": lambda: lambda: schedules.constant(0.1)(3),
    "schedules.as_schedule": lambda: lambda: schedules.as_schedule(0.1)(3),
    "schedules.cosine": lambda: lambda: schedules.cosine(0.0, 1.0, 10)(3),
    "schedules.ema_cosine": lambda: lambda: schedules.ema_cosine(0.9, 10)(3),
    "schedules.warmup_cosine": lambda: lambda: schedules.warmup_cosine(0.1, 2, 10)(jnp.asarray(3)),
    "images.to_float": lambda: lambda: images.to_float(BATCH.image),
    "images.normalize": lambda: lambda: images.normalize(X, (0.2,), (0.3,)),
    "images.image_keys": lambda: lambda: images.image_keys(KEY, jnp.arange(4)),
    "images.augment": _augment,
    "images.center_crops": lambda: lambda: images.center_crops(KEY, BATCH.image),
    "images.Views.__call__": _views(lambda keys: images.small_gray(8)(keys, BATCH.image)),
    "images.imagenet": _views(lambda keys: images.imagenet(8)(keys, COLOR)),
    "images.small_color": _views(lambda keys: images.small_color(8)(keys, COLOR)),
    "images.small_gray": _views(lambda keys: images.small_gray(8)(keys, X)),
    "Info.to_dict": _info,
}
"""By name, a function that prepares a call."""

SLOW_EXAMPLES = {
    "networks.vit": _module(lambda: networks.vit("Ti/16", depth=1), jnp.zeros((1, 32, 32, 3)))["apply"],
    "networks.resnet": _module(lambda: networks.resnet(18, stem="small"), COLOR)["apply"],
    "methods.byov": _method(lambda: tiny.byov_method(prior=priors.teacher_moments(), classes=3)),
    "methods.byol": _method(lambda: tiny.byol_method(accumulate=2)),
    "methods.supervised": _method(_classification("supervised")),
    "methods.supervised_bbb": _method(_classification("supervised_bbb", dataset_size=64, beta=1.0)),
    "methods.from_objective": _method(_from_objective),
}
"""Those that compile for seconds."""

OF_A_MODEL = {
    "Model.predict": _of_model(lambda model, x, labels: model.predict(x, draws=3)),
    "Model.embed": _of_model(lambda model, x, labels: model.embed(x, "predictor", draws=3)),
    "Model.tap": _of_model(lambda model, x, labels: byov.predictive.predict(KEY, *model.tap(), x, 2)),
    "Model.taps": _of_model(lambda model, x, labels: byov.predictive.predict(KEY, *model.taps(), x, 2)),
    "Model.classifier": _of_model(
        lambda model, x, labels: byov.predictive.statistics(KEY, *model.classifier(), x, 2)
    ),
    "Model.with_probe": _of_model(lambda model, x, labels: model.with_probe(x, labels).probe),
    "Model.of_teacher": _of_model(lambda model, x, labels: model.of_teacher().embed(x, "projector")),
    "Model.untrained": _of_model(lambda model, x, labels: model.untrained().embed(x)),
    "evaluate": _of_model(
        lambda model, x, labels: (
            byov.evaluate(
                model,
                trainings.DATA,
                ("calibration", "pruning", "latent", "layers"),
                options=Options(draws=3),
            )
            and None
        )
    ),
}
"""Those of a trained model. The loading of one, `load`, is in the test."""

RECORDS = (
    "Posterior",
    "Batch",
    "State",
    "Prediction",
    "methods.Bayes",
    "methods.Inputs",
    "methods.Method",
    "methods.Outcome",
    "methods.Traits",
    "metrics.BrierDecomposition",
    "metrics.CalibrationReport",
    "metrics.ReliabilityBins",
    "metrics.RiskCoverage",
    "networks.Logits",
    "networks.Taps",
    "posterior.Posterior",
    "predictive.Moments",
    "predictive.Prediction",
    "priors.Prior",
    "priors.PriorState",
    "pruning.Row",
    "pruning.Sparsity",
    "shifts.Strengths",
    "variance.Evidence",
    "variance.VarianceRule",
)

WITHOUT_COMPUTATION = {
    **transformations_table.ON_THE_HOST,
    **dict.fromkeys(RECORDS, "a record of its fields"),
    "Model.bayesian": "reads shapes",
    "Model.roles": "traces the network, computes nothing",
    "Model.supervised": "reads the config",
    "images.View": "a record of its fields",
    "pruning.Count.kept_fraction": "divides Python integers",
    "pruning.Count.pruned_fraction": "divides Python integers",
    "schedules.scale_ema": "a power of Python numbers",
    "selected": "counts in Python integers",
}
"""Names that compile nothing, and why."""
