"""Networks of Equinox as linen modules."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import byov_jax as byov
from byov_jax import networks

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6, 6, 3)), jnp.float32)
KEY = jax.random.key(0)


class Net(eqx.Module):
    conv: eqx.nn.Conv2d
    layers: list
    dropout: eqx.nn.Dropout
    table: jax.Array

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.conv = eqx.nn.Conv2d(3, 8, 3, key=keys[0])
        self.layers = [eqx.nn.Linear(8, 8, key=key) for key in keys[1:]]
        self.dropout = eqx.nn.Dropout(0.5)
        self.table = jnp.arange(8)

    def __call__(self, x, *, key=None):
        x = jax.nn.relu(self.conv(x)).mean((1, 2))[self.table]
        for layer in self.layers:
            x = layer(x)
        return self.dropout(x, key=key)


class Stateful(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.conv = eqx.nn.Conv2d(3, 8, 3, key=key)
        self.norm = eqx.nn.BatchNorm(8, "images", mode="batch")

    def __call__(self, x, state):
        x, state = self.norm(self.conv(x), state)
        return jax.nn.relu(x).mean((1, 2)), state


def make_stateful(key):
    return eqx.nn.make_with_state(Stateful)(key)


@pytest.fixture(scope="module")
def network():
    model = networks.from_equinox(Net)
    return model, jax.jit(model.init)(KEY, X)


@pytest.fixture(scope="module")
def stateful():
    model = networks.from_equinox(make_stateful, axis_name="images")
    return model, jax.jit(model.init)(KEY, X)


def train(model, variables, key=KEY):
    mutable = [name for name in variables if name != "params"]
    return model.apply(variables, X, train=True, rngs={"dropout": key}, mutable=mutable)


def test_collections_and_paths(network):
    model, variables = network
    linear = {"weight": (8, 8), "bias": (8,)}
    shapes = {
        "params": {"conv": {"weight": (8, 3, 3, 3), "bias": (8, 1, 1)}, "layers": {"0": linear, "1": linear}},
        "constants": {"table": (8,)},
    }
    assert jax.tree.map(jnp.shape, variables) == shapes
    assert jax.tree.map(jnp.shape, jax.eval_shape(model.init, KEY, X)) == shapes


def original(variables):
    params, net = variables["params"], Net(KEY)
    layers = params["layers"]
    return eqx.tree_at(
        lambda n: [
            n.conv.weight,
            n.conv.bias,
            *(x for layer in n.layers for x in (layer.weight, layer.bias)),
        ],
        net,
        [params["conv"]["weight"], params["conv"]["bias"]]
        + [layers[i][name] for i in "01" for name in ("weight", "bias")],
    )


def test_evaluation_equals_the_original(network):
    model, variables = network
    net = eqx.nn.inference_mode(original(variables))
    expected = jax.vmap(net)(X.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(jax.jit(model.apply)(variables, X), expected, rtol=1e-5, atol=1e-6)


def test_dropout_is_active_in_training_only(network):
    model, variables = network
    first, second = (train(model, variables, jax.random.key(seed))[0] for seed in (1, 2))
    assert np.any(first != second)
    assert np.any(first != model.apply(variables, X))
    zeros = np.asarray(first) == 0
    assert not np.array_equal(zeros[0], zeros[1])  # a key for each example
    with pytest.raises(RuntimeError, match="Dropout"):
        model.apply(variables, X, train=True)


def test_a_key_without_a_default_is_none_in_evaluation():
    class Keyed(eqx.Module):
        def __call__(self, x, key):
            return x if key is None else x + jax.random.normal(key, x.shape)

    model = networks.from_equinox(lambda key: Keyed())
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(model.apply({}, x), x)
    assert np.any(model.apply({}, x, train=True, rngs={"dropout": KEY}) != x)


def test_gradients_flow_to_every_parameter(network):
    model, variables = network

    @jax.jit
    @jax.grad
    def gradient(params):
        return jnp.sum(train(model, variables | {"params": params})[0] ** 2)

    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient(variables["params"])))


def test_state_is_updated_in_training_only(stateful):
    model, variables = stateful
    assert set(variables) == {"params", "batch_stats", "state"}
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables["batch_stats"]))
    output, updates = jax.jit(lambda v: train(model, v))(variables)

    net, state = make_stateful(KEY)
    params = variables["params"]
    net = eqx.tree_at(
        lambda n: (n.conv.weight, n.conv.bias), net, (params["conv"]["weight"], params["conv"]["bias"])
    )
    call = jax.vmap(net, axis_name="images", in_axes=(0, None), out_axes=(0, None))
    expected, state = call(X.transpose(0, 3, 1, 2), state)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    new = jax.tree.leaves((updates["state"], updates["batch_stats"]))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), new, jax.tree.leaves(state)
    )

    trained = variables | updates
    call = jax.vmap(eqx.nn.inference_mode(net), axis_name="images", in_axes=(0, None), out_axes=(0, None))
    expected, _ = call(X.transpose(0, 3, 1, 2), state)
    output, updates = model.apply(trained, X, mutable=["batch_stats", "state"])
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, dict(updates), {k: trained[k] for k in updates})


def test_a_stateful_network_without_its_state_is_an_error():
    with pytest.raises(ValueError, match=r"the network has state: make it with eqx.nn.make_with_state"):
        networks.from_equinox(lambda key: eqx.nn.BatchNorm(8, "batch", mode="batch")).init(KEY, X)


def test_channels_last():
    class Mean(eqx.Module):
        def __call__(self, x):
            return x.mean((0, 1))

    model = networks.from_equinox(lambda key: Mean(), channels_first=False)
    np.testing.assert_allclose(model.apply({}, X), X.mean((1, 2)), rtol=1e-5, atol=1e-6)


def test_equal_by_make_and_traced_once():
    traces = []
    first, second = networks.from_equinox(Net), networks.from_equinox(Net)
    assert first == second
    assert hash(first) == hash(second)
    assert first != networks.from_equinox(Net, channels_first=False)

    def apply(model, variables):
        traces.append(model)
        return model.apply(variables, X)

    apply = jax.jit(apply, static_argnums=0)
    variables = first.init(KEY, X)
    np.testing.assert_array_equal(apply(first, variables), apply(second, variables))
    assert len(traces) == 1


def test_vmap_over_networks(stateful):
    model, _ = stateful
    variables = jax.vmap(lambda key: model.init(key, X))(jax.random.split(KEY, 2))
    output, _ = jax.jit(jax.vmap(lambda v: train(model, v)))(variables)
    single, _ = train(model, jax.tree.map(lambda x: x[1], variables))
    np.testing.assert_allclose(output[1], single, rtol=1e-4, atol=1e-5)


def test_in_a_student_a_classifier_and_a_posterior(stateful):
    encoder, _ = stateful
    head = networks.from_equinox(lambda key: eqx.nn.MLP(8, 4, 6, 1, key=key))
    student = networks.Student(encoder, head, networks.MLP((6, 4)))
    variables = jax.jit(student.init)(KEY, X)
    taps, updates = train(student, variables)
    assert [x.shape for x in taps] == [(4, 8), (4, 4), (4, 4)]
    assert set(updates["batch_stats"]) == {"encoder", "predictor"}

    classifier = networks.Classifier(encoder, 3)
    assert classifier.apply(classifier.init(KEY, X), X).logits.shape == (4, 3)

    net = byov.Bayesian(encoder, log_var=-2.0)
    variables = net.init(KEY, X)
    draws = [net.apply(variables, X, rngs={"weights": jax.random.key(seed)}) for seed in (1, 2)]
    assert np.any(draws[0] != draws[1])


def test_importing_the_library_does_not_import_equinox():
    code = "import sys; sys.modules['equinox'] = None; import byov_jax"  # importing it would raise
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
