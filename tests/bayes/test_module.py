"""`Bayesian(module)`: samples the weights; other collections and rng streams pass through."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from byov_jax import Bayesian, Posterior, optimizers, posterior

X = jnp.linspace(-1.0, 1.0, 15).reshape(3, 5)
KEY = jax.random.key(0)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(4)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        self.sow("intermediates", "hidden", x)
        return nn.Dense(2)(x)


@pytest.fixture(scope="module")
def variables():
    return Bayesian(Net()).init(KEY, X)


def test_it_holds_a_mean_and_a_log_var_for_the_modules_parameters(variables):
    plain = Net().init(KEY, X)
    assert set(variables["params"]) == {"mean", "log_var"}
    chex.assert_trees_all_equal(variables["params"]["mean"], plain["params"])
    assert all(np.all(leaf == -10.0) for leaf in jax.tree.leaves(variables["params"]["log_var"]))
    assert posterior.size(Posterior(**variables["params"])) == sum(
        x.size for x in jax.tree.leaves(plain["params"])
    )


def test_use_mean_is_the_deterministic_network(variables):
    plain = {"params": variables["params"]["mean"], "batch_stats": variables["batch_stats"]}
    np.testing.assert_array_equal(Bayesian(Net()).apply(variables, X, use_mean=True), Net().apply(plain, X))


def test_calls_draw_from_the_weights_stream(variables):
    net = Bayesian(Net())
    a, b, c = (net.apply(variables, X, rngs={"weights": jax.random.key(seed)}) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.allclose(a, c, atol=1e-6)


@pytest.mark.parametrize("log_var", [50.0, 0.01, -101.0])
def test_an_initial_log_variance_out_of_range_is_refused(log_var):
    with pytest.raises(ValueError, match=rf"log_var={log_var} must be in \[-100, 0\]"):
        Bayesian(Net(), log_var=log_var)


class Autoencoder(nn.Module):
    def setup(self):
        self.encoder, self.decoder = nn.Dense(2), nn.Dense(5)

    def __call__(self, x):
        return self.decode(self.encode(x))

    def encode(self, x):
        return self.encoder(x)

    def decode(self, z):
        return self.decoder(z)


def test_any_method_of_the_module_is_called_with_drawn_weights():
    net = Bayesian(Autoencoder(), log_var=-2.0)
    variables = net.init(KEY, X)
    rngs = {"weights": jax.random.key(1)}
    z = net.apply(variables, "encode", X, rngs=rngs, method="call")
    chex.assert_trees_all_equal(z, net.apply(variables, "encode", X, rngs=rngs, method=Bayesian.call))
    plain = {"params": variables["params"]["mean"]}
    mean = net.apply(variables, "encode", X, use_mean=True, method="call")
    chex.assert_trees_all_equal(mean, Autoencoder().apply(plain, X, method="encode"))
    assert not np.allclose(z, mean)


def test_the_kl_of_a_network_finds_all_posteriors_in_it():
    class Mixed(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = Bayesian(nn.Dense(4), log_var=-2.0, name="first")(x)
            x = nn.Dense(3, name="plain")(x)
            return Bayesian(nn.Dense(2), log_var=-1.0, name="second")(x)

    params = Mixed().init(KEY, X)["params"]
    q = posterior.collect(params)
    assert posterior.size(q) == (5 * 4 + 4) + (3 * 2 + 2)
    expected = sum(posterior.kl(Posterior(**params[name])) for name in ("first", "second"))
    np.testing.assert_allclose(posterior.kl(q), expected, rtol=1e-6)


def test_its_parameters_fit_the_optimizers():
    """Decay moves the means of kernels, never a log-variance: sigma would become 1."""
    variables = Bayesian(Net()).init(KEY, X)
    optimizer = optimizers.bayesian(optimizers.adamw(0.1, weight_decay=0.5), optax.adam(1e-3))
    zeros = jax.tree.map(jnp.zeros_like, variables["params"])
    updates, _ = optimizer.update(zeros, optimizer.init(variables["params"]), variables["params"])
    assert np.any(updates["mean"]["Dense_0"]["kernel"] != 0.0)
    assert np.all(updates["mean"]["BatchNorm_0"]["scale"] == 0.0)
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(updates["log_var"]))


def test_draws_have_the_posterior_variance():
    net = Bayesian(nn.Dense(1), log_var=-2.0)
    x = jnp.array([[1.0, 2.0]])
    variables = net.init(KEY, x)
    keys = jax.random.split(jax.random.key(1), 4000)
    y = jax.vmap(lambda key: net.apply(variables, x, rngs={"weights": key}))(keys)
    np.testing.assert_allclose(np.var(y), np.exp(-2.0) * (1.0 + 4.0 + 1.0), rtol=0.1)


def test_batch_statistics_dropout_and_sown_values_pass_through(variables):
    rngs = {"weights": jax.random.key(1), "dropout": jax.random.key(2)}
    net = Bayesian(Net())
    y, updated = net.apply(variables, X, train=True, rngs=rngs, mutable=["batch_stats", "intermediates"])
    assert jax.tree.structure(updated["batch_stats"]) == jax.tree.structure(variables["batch_stats"])
    assert np.any(updated["batch_stats"]["BatchNorm_0"]["mean"] != 0.0)
    assert np.mean(updated["intermediates"]["hidden"][0] == 0.0) > 0.1
    other, _ = net.apply(
        variables, X, train=True, rngs=rngs | {"dropout": jax.random.key(3)}, mutable=["batch_stats"]
    )
    assert not np.allclose(y, other)


def test_where_leaves_the_rest_deterministic():
    variables = Bayesian(Net(), where="linear_only").init(KEY, X)
    assert variables["params"]["log_var"]["BatchNorm_0"] == {"scale": None, "bias": None}


def test_a_missing_stream_is_an_error_with_a_remedy(variables):
    with pytest.raises(ValueError, match=r'rngs={"weights": key}; for the mean pass use_mean=True'):
        Bayesian(Net()).apply(variables, X)


def test_it_nests_inside_other_modules():
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(Bayesian(nn.Dense(4), name="body")(x))

    variables = Outer().init(KEY, X)
    assert set(variables["params"]["body"]) == {"mean", "log_var"}
    y = Outer().apply(variables, X, rngs={"weights": KEY})
    assert y.shape == (3, 2)


def test_it_trains_under_jit(variables):
    net = Bayesian(Net())

    @jax.jit
    def gradient(params, key):
        def loss(params):
            y = net.apply({**variables, "params": params}, X, rngs={"weights": key})
            return jnp.sum(jnp.square(y)) + 1e-3 * posterior.kl(Posterior(**params))

        return jax.grad(loss)(params)

    leaves = jax.tree.leaves(gradient(variables["params"], KEY)["log_var"])
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf != 0.0) for leaf in leaves)
