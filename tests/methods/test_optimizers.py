"""Optimizers of a posterior: weight decay, learning rates, clipping."""

import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from byov_jax import Posterior, optimizers, posterior, schedules

PARAMS = {
    "dense": {"kernel": jnp.full((2, 2), 2.0), "bias": jnp.full(2, 2.0)},
    "norm": {"scale": jnp.full(2, 2.0)},
    "class_token": jnp.full(2, 2.0),
}
OPTIMIZERS = [optimizers.adamw, optimizers.lars]


def update(transformation, q, gradient):
    updates, state = transformation.update(gradient, transformation.init(q), q)
    return updates, state


def ones(q):
    return jax.tree.map(jnp.ones_like, q)


def zeros(q):
    return jax.tree.map(jnp.zeros_like, q)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_only_kernels_decay(make):
    q = posterior.point(PARAMS)
    updates, _ = update(make(1.0, weight_decay=0.1), q, zeros(q))
    assert np.all(updates.mean["dense"]["kernel"] < 0.0)
    for leaf in (updates.mean["dense"]["bias"], updates.mean["norm"]["scale"], updates.mean["class_token"]):
        assert np.all(leaf == 0.0)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_bayesian_parameters_never_decay_by_default(make):
    q = posterior.init(PARAMS)
    updates, _ = update(make(1.0, weight_decay=0.1), q, zeros(q))
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(updates))


def test_partial_bayes_decays_the_point_estimates_only():
    params = {"a": PARAMS["dense"], "b": PARAMS["dense"]}
    q = posterior.init(params, where="^a/")
    updates, _ = update(optimizers.adamw(1.0, weight_decay=0.1), q, zeros(q))
    assert np.all(updates.mean["a"]["kernel"] == 0.0)
    np.testing.assert_allclose(updates.mean["b"]["kernel"], -0.2, rtol=1e-6)


def test_decay_of_bayesian_parameters_warns():
    with pytest.warns(UserWarning, match="KL already regularises"):
        forced = optimizers.adamw(1.0, bayesian_weight_decay=0.1)
    q = posterior.init(PARAMS)
    updates, _ = update(forced, q, zeros(q))
    np.testing.assert_allclose(updates.mean["dense"]["kernel"], -0.2, rtol=1e-6)
    assert np.all(updates.log_var["dense"]["kernel"] == 0.0)


def test_the_default_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizers.adamw(1.0, weight_decay=0.1)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_log_variances_have_their_own_learning_rate(make):
    q = posterior.init(PARAMS)
    once, _ = update(make(0.1), q, ones(q))
    scaled, _ = update(make(0.1, log_var_multiplier=20.0), q, ones(q))
    np.testing.assert_allclose(
        scaled.log_var["norm"]["scale"], 20.0 * once.log_var["norm"]["scale"], rtol=1e-6
    )
    chex.assert_trees_all_equal(scaled.mean, once.mean)


def test_adamw_without_extras_is_optax_adamw():
    q = posterior.point({"kernel": jnp.array([[1.0, -2.0]])})
    ours = optimizers.adamw(schedules.constant(0.01), b2=0.999, weight_decay=0.1)
    theirs = optax.adamw(0.01, weight_decay=0.1)
    states = ours.init(q), theirs.init(q.mean)
    for scale in (1.0, -0.3, 0.7):
        gradient = {"kernel": scale * jnp.array([[0.5, 0.1]])}
        got, first = ours.update(posterior.point(gradient), states[0], q)
        expected, second = theirs.update(gradient, states[1], q.mean)
        states = first, second
        np.testing.assert_allclose(got.mean["kernel"], expected["kernel"], rtol=1e-6)


def test_lars_trust_ratio_for_kernels_and_plain_momentum_elsewhere():
    q = posterior.point(PARAMS)
    updates, _ = update(optimizers.lars(0.5, trust_coefficient=1e-3), q, ones(q))
    ratio = 1e-3 * 4.0 / 2.0  # |w| = 4, |g| = 2
    np.testing.assert_allclose(updates.mean["dense"]["kernel"], -0.5 * ratio, rtol=1e-5)
    np.testing.assert_allclose(updates.mean["dense"]["bias"], -0.5, rtol=1e-6)


def test_lars_does_not_rescale_log_variances():
    q = posterior.init(PARAMS)
    updates, _ = update(optimizers.lars(0.5), q, ones(q))
    np.testing.assert_allclose(updates.log_var["dense"]["kernel"], -0.5, rtol=1e-6)


def test_clipping_bounds_the_global_norm():
    q = Posterior({"kernel": jnp.zeros((2, 2))}, {"kernel": jnp.zeros((2, 2))})
    updates, _ = update(optimizers.lars(1.0, clip_norm=0.5, trust_coefficient=1.0), q, ones(q))
    np.testing.assert_allclose(optax.tree.norm(updates.log_var), 0.5 / np.sqrt(2.0), rtol=1e-5)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_learning_rate_can_be_read_from_the_state(make):
    q = posterior.point(PARAMS)
    transformation = make(schedules.warmup_cosine(0.4, 4, 100))
    state = transformation.init(q)
    rates = []
    for _ in range(3):
        _, state = transformation.update(ones(q), state, q)
        rates.append(float(optimizers.learning_rate(state)))
    np.testing.assert_allclose(rates, [0.0, 0.1, 0.2], atol=1e-7)


def test_the_learning_rate_of_other_optimizers_is_nan():
    q = posterior.point(PARAMS)
    assert np.isnan(optimizers.learning_rate(optax.sgd(0.1).init(q)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"log_var_multiplier": -1.0}, "log_var_multiplier=-1.0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
    ],
)
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_bad_values_are_named(make, fields, message):
    with pytest.raises(ValueError, match=message):
        make(0.1, **fields).init(posterior.point(PARAMS))
