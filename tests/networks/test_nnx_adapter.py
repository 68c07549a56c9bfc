"""Networks of Flax NNX as linen modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import byov_jax as byov
from byov_jax import networks

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6, 6, 3)), jnp.float32)
KEY = jax.random.key(0)


class Count(nnx.Variable):
    pass


class LearningCount(Count):
    pass


class Net(nnx.Module):
    def __init__(self, rngs, *, rate=0.5):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropouts = nnx.List([nnx.Dropout(rate, rngs=rngs) for _ in range(2)])
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(2)])
        self.calls = LearningCount(jnp.zeros(()))
        self.gain = jnp.full(8, 2.0)

    def __call__(self, x):
        self.calls[...] += 1
        x = nnx.relu(self.norm(self.conv(x))).mean((1, 2))
        for layer, dropout in zip(self.layers, self.dropouts, strict=True):
            x = dropout(layer(x))
        return self.gain[None] * x


@pytest.fixture(scope="module")
def network():
    model = networks.from_nnx(Net)
    return model, jax.jit(model.init)(KEY, X)


def train(model, variables, x=X, key=KEY):
    mutable = [name for name in variables if name != "params"]
    return model.apply(variables, x, train=True, rngs={"dropout": key}, mutable=mutable)


def test_collections_and_paths(network):
    _, variables = network
    linear = {"kernel": (8, 8), "bias": (8,)}
    assert jax.tree.map(jnp.shape, variables) == {
        "params": {
            "conv": {"kernel": (3, 3, 3, 8), "bias": (8,)},
            "norm": {"scale": (8,), "bias": (8,)},
            "layers": {"0": linear, "1": linear},
        },
        "batch_stats": {"norm": {"mean": (8,), "var": (8,)}},
        "learning_count": {"calls": ()},
        "arrays": {"gain": (8,)},
    }
    assert jax.tree.map(jnp.shape, jax.eval_shape(network[0].init, KEY, X)) == jax.tree.map(
        jnp.shape, variables
    )


def test_initial_values_are_those_of_the_network(network):
    model, _ = network
    linen_key = []
    model = networks.from_nnx(lambda rngs: linen_key.append(rngs.default.key[...]) or Net(rngs))
    variables = model.init(KEY, X)
    expected = Net(nnx.Rngs(next(key for key in linen_key if not isinstance(key, jax.core.Tracer))))
    np.testing.assert_array_equal(variables["params"]["conv"]["kernel"], expected.conv.kernel[...])
    np.testing.assert_array_equal(variables["arrays"]["gain"], 2)
    assert variables["learning_count"]["calls"] == 0  # the forward pass of init leaves no trace


def original(variables):
    net = Net(nnx.Rngs(0))
    nnx.update(net.conv, variables["params"]["conv"])
    nnx.update(net.norm, variables["params"]["norm"] | variables["batch_stats"]["norm"])
    for i, layer in enumerate(net.layers):
        nnx.update(layer, variables["params"]["layers"][str(i)])
    return net


def test_evaluation_equals_the_original(network):
    model, variables = network
    statistics = {"norm": {"mean": jnp.linspace(-1, 1, 8), "var": jnp.linspace(1, 3, 8)}}
    variables = variables | {"batch_stats": statistics}
    net = original(variables)
    net.eval()
    np.testing.assert_allclose(jax.jit(model.apply)(variables, X), net(X), rtol=1e-5, atol=1e-6)


def test_training_updates_statistics_as_the_original(network):
    model, variables = network
    output, updates = jax.jit(lambda v: train(model, v))(variables)
    net = original(variables)
    net.train()
    net(X)
    np.testing.assert_allclose(
        updates["batch_stats"]["norm"]["mean"], net.norm.mean[...], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(updates["batch_stats"]["norm"]["var"], net.norm.var[...], rtol=1e-4, atol=1e-6)
    assert updates["learning_count"]["calls"] == 1
    assert output.shape == (4, 8)
    _, updates = model.apply(variables, X, mutable=["batch_stats"])
    np.testing.assert_array_equal(
        updates["batch_stats"]["norm"]["mean"], variables["batch_stats"]["norm"]["mean"]
    )


def test_dropout_is_active_in_training_only(network):
    model, variables = network
    np.testing.assert_array_equal(model.apply(variables, X), model.apply(variables, X, rngs={"dropout": KEY}))
    first, second = (train(model, variables, key=jax.random.key(seed))[0] for seed in (1, 2))
    assert np.any(first != second)
    np.testing.assert_array_equal(first, train(model, variables, key=jax.random.key(1))[0])
    with pytest.raises(ValueError, match=r'this network needs rngs={"dropout": key}'):
        model.apply(variables, X, train=True, mutable=["batch_stats"])


def test_dropouts_of_one_network_are_independent():
    class Masks(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return jnp.concatenate([self.first(x), self.second(x)], axis=1)

    model = networks.from_nnx(Masks)
    masks = model.apply({}, jnp.ones((100, 10)), train=True, rngs={"dropout": jax.random.PRNGKey(0)}) > 0
    assert 0.4 < np.mean(masks[:, :10] == masks[:, 10:]) < 0.6
    assert 0.4 < masks.mean() < 0.6


def test_gradients_flow_to_every_parameter(network):
    model, variables = network

    @jax.jit
    @jax.grad
    def gradient(params):
        return jnp.sum(train(model, variables | {"params": params})[0] ** 2)

    found = gradient(variables["params"])
    for path in (("conv", "kernel"), ("norm", "scale"), ("layers", "0", "kernel"), ("layers", "1", "bias")):
        leaf = found
        for name in path:
            leaf = leaf[name]
        assert np.any(leaf != 0), path


def test_equal_by_make_and_traced_once():
    traces = []

    def make(rngs):
        return Net(rngs)

    first, second = networks.from_nnx(make), networks.from_nnx(make)
    assert first == second
    assert hash(first) == hash(second)
    assert first != networks.from_nnx(Net)

    def apply(model, variables):
        traces.append(model)
        return model.apply(variables, X)

    apply = jax.jit(apply, static_argnums=0)
    variables = first.init(KEY, X)
    np.testing.assert_array_equal(apply(first, variables), apply(second, variables))
    assert len(traces) == 1


def test_vmap_over_networks(network):
    model, _ = network
    variables = jax.vmap(lambda key: model.init(key, X))(jax.random.split(KEY, 2))
    output, updates = jax.jit(jax.vmap(lambda v: train(model, v)))(variables)
    assert output.shape == (2, 4, 8)
    assert updates["batch_stats"]["norm"]["mean"].shape == (2, 8)
    single, _ = train(model, jax.tree.map(lambda x: x[0], variables))
    np.testing.assert_allclose(output[0], single, rtol=1e-5, atol=1e-5)


def test_in_a_student_a_classifier_and_a_posterior(network):
    encoder, _ = network
    student = networks.Student(
        encoder, networks.from_nnx(lambda rngs: nnx.Linear(8, 4, rngs=rngs)), networks.MLP((6, 4))
    )
    variables = jax.jit(student.init)(KEY, X)
    assert set(variables["params"]["projector"]) == {"kernel", "bias"}
    taps, updates = train(student, variables)
    assert [x.shape for x in taps] == [(4, 8), (4, 4), (4, 4)]
    assert set(updates["batch_stats"]) == {"encoder", "predictor"}

    classifier = networks.Classifier(encoder, 3)
    assert classifier.apply(classifier.init(KEY, X), X).logits.shape == (4, 3)

    net = byov.Bayesian(encoder, log_var=-2.0)
    variables = net.init(KEY, X)
    assert set(variables["params"]) == {"mean", "log_var"}
    draws = [net.apply(variables, X, rngs={"weights": jax.random.key(seed)}) for seed in (1, 2)]
    assert np.any(draws[0] != draws[1])


def test_a_network_that_takes_the_mode():
    class Mode(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 3, rngs=rngs)

        def __call__(self, x, train):
            return self.linear(x) if train else x

    model = networks.from_nnx(Mode)
    x = jnp.ones((2, 3))
    variables = model.init(KEY, x)
    np.testing.assert_array_equal(model.apply(variables, x), x)
    assert np.any(model.apply(variables, x, train=True) != x)


def test_stacked_layers_with_dropout():
    class Stack(nnx.Module):
        def __init__(self, rngs):
            @nnx.split_rngs(splits=3)
            @nnx.vmap
            def layers(rngs):
                return nnx.Sequential(nnx.Linear(4, 4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))

            self.layers = layers(rngs)

        def __call__(self, x):
            scan = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return scan(x, self.layers)

    model = networks.from_nnx(Stack)
    x = jnp.ones((2, 4))
    variables = model.init(KEY, x)
    assert variables["params"]["layers"]["layers"]["0"]["kernel"].shape == (3, 4, 4)
    assert np.any(train(model, variables, x)[0] != model.apply(variables, x))


def test_a_missing_variable_is_named(network):
    model, variables = network
    with pytest.raises(ValueError, match="the variables have no batch_stats/norm/mean"):
        model.apply({name: tree for name, tree in variables.items() if name != "batch_stats"}, X)
