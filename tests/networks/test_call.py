"""How networks are told about training, and what they have to return."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import byov_jax as byov
from byov_jax.networks import MLP, Classifier, FromMethod, Student

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 4, 4, 3)), jnp.float32)
KEY = jax.random.key(0)


class Train(nn.Module):
    @nn.compact
    def __call__(self, x, *, train):
        assert train is True or train is False
        return nn.Dropout(0.5)(nn.Dense(5)(x.mean((1, 2))), deterministic=not train)


class Positional(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        assert train is True or train is False
        return nn.Dropout(0.5)(nn.Dense(5)(x.mean((1, 2))), deterministic=not train)


class Training(nn.Module):
    @nn.compact
    def __call__(self, x, mask=None, training=False):
        return Train()(x, train=training)


class IsTraining(nn.Module):
    @nn.compact
    def __call__(self, x, is_training):
        return Train()(x, train=is_training)


class Deterministic(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=True):
        return Train()(x, train=not deterministic)


class RunningAverage(nn.Module):
    @nn.compact
    def __call__(self, x, use_running_average=True):
        return Train()(x, train=not use_running_average)


class Keywords(nn.Module):
    @nn.compact
    def __call__(self, x, **kwargs):
        return Train()(x, **kwargs)


class Wrapper(nn.Module):
    module: nn.Module

    def __call__(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class Nothing(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(5)(x.mean((1, 2)))


class AutoEncoder(nn.Module):
    def setup(self):
        self.encoder, self.decoder = Train(), nn.Dense(3)

    def encode(self, x, train):
        return self.encoder(x, train=train)

    def __call__(self, x, train):
        return self.decoder(self.encode(x, train))


MODULES = {
    "train": Train(),
    "positional": Positional(),
    "training": Training(),
    "is_training": IsTraining(),
    "deterministic": Deterministic(),
    "use_running_average": RunningAverage(),
    "keywords": Keywords(),
    "remat": nn.remat(Positional, static_argnums=(2,))(),
    "wrapper": Wrapper(Deterministic()),
    "bayesian": byov.Bayesian(Deterministic()),
    "sequential": nn.Sequential([Positional(), nn.relu]),
    "method": FromMethod(AutoEncoder(), "encode"),
}


@pytest.mark.parametrize("name", MODULES)
def test_dropout_is_active_in_training_only(name):
    model = Classifier(MODULES[name], classes=3)
    variables = model.init(KEY, X)
    weights = {"weights": KEY}

    @jax.jit
    def train(key):
        return model.apply(variables, X, train=True, rngs={"dropout": key} | weights).encoder

    @jax.jit
    def evaluate():
        return model.apply(variables, X, rngs=weights).encoder

    assert np.any(train(jax.random.key(1)) != train(jax.random.key(2)))
    assert np.any(train(jax.random.key(1)) != evaluate())


@pytest.mark.parametrize("wrap", [lambda module: module, Wrapper, byov.Bayesian, nn.remat(Wrapper)])
def test_a_network_without_a_mode_is_called_with_its_input(wrap):
    model = Student(wrap(Nothing()), MLP((6, 4)), MLP((4,), norm="none"))
    variables = model.init(KEY, X)
    taps, _ = model.apply(variables, X, train=True, mutable=["batch_stats"], rngs={"weights": KEY})
    assert [x.shape for x in taps] == [(4, 5), (4, 4), (4, 4)]


def test_sequential_of_plain_layers_and_functions():
    encoder = nn.Sequential([nn.relu, nn.Conv(4, (3, 3)), lambda x: x.mean((1, 2))])
    model = Student(encoder, nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(4)]), nn.Dense(4))
    variables = model.init(KEY, X)
    assert set(variables["params"]["encoder"]) == {"layers_1"}
    assert model.apply(variables, X, train=True).predictor.shape == (4, 4)


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (lambda x: x, r"an array \[4, 4, 4, 3\]"),
        (lambda x: x.mean(), r"an array \[\]"),
        (lambda x: (x.mean((1, 2)), None), "a tuple"),
        (lambda x: {"features": x.mean((1, 2))}, "a dict"),
    ],
)
@pytest.mark.parametrize("model", ["student", "classifier"])
def test_other_outputs_are_an_error(output, found, model):
    class Encoder(nn.Module):
        def __call__(self, x):
            return output(x)

    model = Classifier(Encoder(), 3) if model == "classifier" else Student(Encoder(), MLP((4,)), MLP((4,)))
    with pytest.raises(
        ValueError, match=rf"^Encoder returned {found}: expected an array \[batch, features\]"
    ):
        model.init(KEY, X)


def test_a_method_keeps_the_paths_of_parameters():
    model = AutoEncoder()
    full = model.init(KEY, X, train=False)
    wrapped = FromMethod(model, "encode")
    params = wrapped.init(KEY, X)["params"]
    assert jax.tree.structure(params) == jax.tree.structure({"encoder": full["params"]["encoder"]})
    expected = model.apply(full, X, train=False, method="encode")
    np.testing.assert_array_equal(wrapped.apply(full, X), expected)


def test_a_method_of_a_network_with_networks_for_fields():
    class Outer(nn.Module):
        net: nn.Module

        def features(self, x):
            return self.net(x)

    class Compact(nn.Module):
        @nn.compact
        def __call__(self, x):
            return FromMethod(Outer(Outer(nn.Dense(3))), "features")(x)

    Outer.__call__ = Outer.features
    x = jnp.zeros((2, 3))
    expected = {"net": {"net": {"kernel": (3, 3), "bias": (3,)}}}
    model = FromMethod(Outer(Outer(nn.Dense(3))), "features")
    assert jax.tree.map(jnp.shape, model.init(KEY, x)["params"]) == expected
    assert jax.tree.map(jnp.shape, Compact().init(KEY, x)["params"]) == {"FromMethod_0": expected}


def test_a_method_that_does_not_exist():
    with pytest.raises(ValueError, match="AutoEncoder has no method 'features'"):
        FromMethod(AutoEncoder(), "features")


def test_what_a_teacher_keeps_is_no_field():
    assert Student.teacher_parts == ("encoder", "projector")
    assert "teacher_parts" not in Student(Nothing(), MLP((4,)), MLP((4,))).__dict__


def test_own_collections_pass_through():
    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            calls = self.variable("counters", "calls", jnp.zeros, ())
            if train and not self.is_initializing():
                calls.value += 1
            return x.mean((1, 2))

    model = Classifier(Counting(), 3)
    variables = model.init(KEY, X)
    _, updates = model.apply(variables, X, train=True, mutable=["counters"])
    assert updates["counters"]["encoder"]["calls"] == 1
