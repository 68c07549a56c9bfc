"""The heads: layers, the arithmetic of batch norm and its synchronisation over devices."""

from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ModifyScopeVariableError

from byov_jax.networks import MLP

X = jnp.asarray(np.random.default_rng(0).normal(2, 3, (8, 5)), jnp.float32)
KEY = jax.random.key(0, impl="rbg")  # compiles faster than threefry


@cache
def build(**overrides):
    model = MLP(**({"widths": (6, 4)} | overrides))
    return model, jax.jit(model.init)(KEY, X)


def run(model, variables, x=X, **kwargs):
    return jax.jit(lambda v: model.apply(v, x, **kwargs))(variables)


def test_parameter_count_of_byol():
    variables = jax.eval_shape(MLP((4096, 256)).init, KEY, jnp.zeros((2, 768)))
    count = {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in variables.items()}
    dense, norm = 768 * 4096 + 4096 + 4096 * 256, 2 * 4096
    assert count == {"params": dense + norm, "batch_stats": 2 * 4096}


@pytest.mark.parametrize(("norm", "norms"), [("batch", 2), ("layer", 2), ("none", 0)])
def test_names(norm, norms):
    variables = jax.eval_shape(MLP((6, 6, 4), norm=norm).init, KEY, X)
    names = {"dense_0", "dense_1", "dense_2"} | {f"norm_{i}" for i in range(norms)}
    assert set(variables["params"]) == names
    assert ("batch_stats" in variables) == (norm == "batch")


def test_kernels_start_as_a_normal_of_std_002_cut_at_two_sigma():
    variables = jax.jit(MLP((400, 300)).init)(KEY, jnp.zeros((2, 100)))
    for layer in ("dense_0", "dense_1"):
        kernel = variables["params"][layer]["kernel"]
        assert np.std(kernel) == pytest.approx(0.02 * 0.8796, rel=0.02)
        assert np.max(np.abs(kernel)) <= 0.04


def dense(x, p):
    return x @ np.asarray(p["kernel"], np.float64) + np.asarray(p.get("bias", 0.0), np.float64)


@pytest.mark.parametrize(("fields", "last"), [({}, {"kernel"}), ({"output_bias": True}, {"kernel", "bias"})])
def test_the_last_layer_alone_has_no_bias_unless_it_is_given_one(fields, last):
    params = jax.eval_shape(MLP((6, 6, 4), **fields).init, KEY, X)["params"]
    assert params["dense_0"].keys() == params["dense_1"].keys() == {"kernel", "bias"}
    assert params["dense_2"].keys() == last


@pytest.mark.parametrize(("fields", "expected"), [({}, (3.0, 36.0)), ({"output_bias": True}, (3.5, 36.5))])
def test_outputs_of_known_numbers(fields, expected):
    """By hand: max(2 * 1 - 1, 0) * 3 = 3 and max(2 * 6.5 - 1, 0) * 3 = 36, plus the bias of .5 if any."""
    first = {"kernel": jnp.full((1, 1), 2.0), "bias": jnp.full(1, -1.0)}
    second = {"kernel": jnp.full((1, 1), 3.0)} | ({"bias": jnp.full(1, 0.5)} if fields else {})
    model, variables = MLP((1, 1), norm="none", **fields), {"params": {"dense_0": first, "dense_1": second}}
    np.testing.assert_array_equal(run(model, variables, jnp.array([[1.0], [6.5]]))[:, 0], expected)


def test_train_normalises_by_the_batch():
    model, variables = build()
    p = variables["params"]
    hidden = dense(np.asarray(X), p["dense_0"])
    normal = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    output, updates = run(model, variables, train=True, mutable=["batch_stats"])
    np.testing.assert_allclose(output, dense(np.maximum(normal, 0), p["dense_1"]), rtol=1e-4, atol=1e-5)
    running = updates["batch_stats"]["norm_0"]
    np.testing.assert_allclose(running["mean"], 0.9 * 0 + 0.1 * hidden.mean(0), rtol=1e-4)
    np.testing.assert_allclose(running["var"], 0.9 * 1 + 0.1 * hidden.var(0), rtol=1e-4)


def test_running_statistics_of_known_numbers():
    model = MLP((1, 1))
    variables = model.init(KEY, jnp.zeros((2, 1)))
    variables["params"]["dense_0"] = {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)}
    for _ in range(2):
        _, updates = run(model, variables, jnp.array([[1.0], [5.0]]), train=True, mutable=["batch_stats"])
        variables |= updates
    running = variables["batch_stats"]["norm_0"]  # batch mean 3, variance 4
    np.testing.assert_allclose(running["mean"], 0.9 * 0.3 + 0.1 * 3, rtol=1e-6)
    np.testing.assert_allclose(running["var"], 0.9 * (0.9 + 0.4) + 0.1 * 4, rtol=1e-6)


def test_the_variance_keeps_the_precision_of_large_means():
    """Mean 5,000, standard deviation 1: in float32, E[x^2] - E[x]^2 = 25,000,001 - 25,000,000 is not 1."""
    params = {
        "dense_0": {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)},
        "norm_0": {"scale": jnp.ones(1), "bias": jnp.zeros(1)},
        "dense_1": {"kernel": jnp.ones((1, 1))},
    }
    variables = {"params": params, "batch_stats": {"norm_0": {"mean": jnp.zeros(1), "var": jnp.ones(1)}}}
    x = jnp.array([[4999.0], [5001.0]])
    output, updates = run(MLP((1, 1)), variables, x, train=True, mutable=["batch_stats"])
    np.testing.assert_allclose(output[:, 0], [0.0, 1.0 / np.sqrt(1.0 + 1e-5)], rtol=1e-6)
    np.testing.assert_allclose(updates["batch_stats"]["norm_0"]["var"], 0.9 * 1 + 0.1 * 1, rtol=1e-6)


def test_evaluation_normalises_by_running_statistics():
    model, variables = build()
    p = variables["params"]
    variables = {"params": p, "batch_stats": {"norm_0": {"mean": jnp.arange(6.0), "var": jnp.full(6, 4.0)}}}
    normal = (dense(np.asarray(X), p["dense_0"]) - np.arange(6)) / np.sqrt(4 + 1e-5)
    output, updates = run(model, variables, mutable=["batch_stats"])
    np.testing.assert_allclose(output, dense(np.maximum(normal, 0), p["dense_1"]), rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_equal(updates["batch_stats"], variables["batch_stats"])


def test_initialisation_does_not_update_running_statistics():
    model = MLP((6, 4))
    variables = model.init(KEY, X, train=True)
    np.testing.assert_array_equal(variables["batch_stats"]["norm_0"]["mean"], 0)
    np.testing.assert_array_equal(variables["batch_stats"]["norm_0"]["var"], 1)


def test_training_without_mutable_statistics_fails():
    model, variables = build()
    with pytest.raises(ModifyScopeVariableError, match="batch_stats"):
        model.apply(variables, X, train=True)


def test_layer_norm_is_independent_of_the_batch():
    model, variables = build(norm="layer")
    batch, single = run(model, variables, train=True), run(model, variables, X[:1])
    np.testing.assert_allclose(batch[:1], single, rtol=1e-5, atol=1e-6)


def test_last_layer_is_linear_and_without_norm():
    model, variables = build(widths=(4,))
    expected = dense(np.asarray(X), variables["params"]["dense_0"])
    np.testing.assert_allclose(run(model, variables, train=True), expected, rtol=1e-4, atol=1e-5)


def gradient(model, variables, x):
    """Return loss, batch statistics and the gradient of a training step."""

    def loss(params):
        output, updates = model.apply(variables | {"params": params}, x, train=True, mutable=["batch_stats"])
        return jnp.mean(jnp.square(output) * jnp.arange(1.0, 5.0)[None]), updates["batch_stats"]

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
    return value, stats, grads


@pytest.mark.parametrize("transform", [jax.vmap, jax.pmap])
def test_synchronised_batch_norm_equals_a_large_batch(transform):
    model, variables = build()

    def shard(x):
        value, stats, grads = gradient(model.copy(axis_name="devices"), variables, x)
        return jax.lax.pmean(value, "devices"), stats, jax.lax.pmean(grads, "devices")

    actual = jax.jit(transform(shard, axis_name="devices"))(X.reshape(4, 2, 5))
    expected = jax.jit(partial(gradient, model, variables))(X)
    expected = jax.tree.map(lambda x: np.broadcast_to(x, (4, *x.shape)), expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), actual, expected)


def test_statistics_without_an_axis_name_are_local():
    model, variables = build()
    _, stats, _ = jax.jit(jax.vmap(partial(gradient, model, variables)))(X.reshape(4, 2, 5))
    assert np.ptp(stats["norm_0"]["mean"], axis=0).max() > 0.01


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_bfloat16_keeps_parameters_statistics_and_output_in_float32(norm):
    model, variables = build(norm=norm)
    half = model.copy(dtype=jnp.bfloat16)
    output, updates = run(half, variables, train=True, mutable=["batch_stats"])
    created = jax.eval_shape(half.init, KEY, X)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves((created, output, updates)))
    expected, _ = run(model, variables, train=True, mutable=["batch_stats"])
    assert not np.array_equal(output, expected)
    np.testing.assert_allclose(output, expected, atol=0.05, rtol=0.03)


def test_bad_fields():
    with pytest.raises(ValueError, match="norm='instance': expected 'batch', 'layer' or 'none'"):
        MLP((4,), norm="instance")
    with pytest.raises(ValueError, match="expected at least one width"):
        MLP(())
