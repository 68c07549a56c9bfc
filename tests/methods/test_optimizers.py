"""Optimizers of the means: decay by role, learning rates, clipping, and any optax transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

import byov_jax as byov
from byov_jax import optimizers, schedules

PARAMS = {
    "dense": {"kernel": jnp.full((2, 2), 2.0), "bias": jnp.full(2, 2.0)},
    "norm": {"scale": jnp.full(2, 2.0)},
    "class_token": jnp.full(2, 2.0),
}
OPTIMIZERS = [optimizers.adamw, optimizers.lars]


def update(transformation, params, gradient):
    return transformation.update(gradient, transformation.init(params), params)


def ones(params):
    return jax.tree.map(jnp.ones_like, params)


def zeros(params):
    return jax.tree.map(jnp.zeros_like, params)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_only_kernels_decay(make):
    updates, _ = update(make(1.0, weight_decay=0.1), PARAMS, zeros(PARAMS))
    assert np.all(updates["dense"]["kernel"] < 0.0)
    for leaf in (updates["dense"]["bias"], updates["norm"]["scale"], updates["class_token"]):
        assert np.all(leaf == 0.0)


def test_decay_goes_by_what_a_parameter_is_not_by_its_name():
    params = {
        "linear": {"w": jnp.ones((2, 2)), "b": jnp.ones(2)},
        "equinox_norm": {"weight": jnp.ones(2), "bias": jnp.ones(2)},
        "equinox_linear": {"weight": jnp.ones((2, 2))},
    }
    assert optimizers.kernels(params) == {
        "linear": {"w": True, "b": False},
        "equinox_norm": {"weight": False, "bias": False},
        "equinox_linear": {"weight": True},
    }


def test_adamw_without_extras_is_optax_adamw():
    params = {"kernel": jnp.array([[1.0, -2.0]])}
    ours = optimizers.adamw(schedules.constant(0.01), b2=0.999, weight_decay=0.1)
    theirs = optax.adamw(0.01, weight_decay=0.1)
    states = ours.init(params), theirs.init(params)
    for scale in (1.0, -0.3, 0.7):
        gradient = {"kernel": scale * jnp.array([[0.5, 0.1]])}
        got, first = ours.update(gradient, states[0], params)
        expected, second = theirs.update(gradient, states[1], params)
        states = first, second
        np.testing.assert_allclose(got["kernel"], expected["kernel"], rtol=1e-6)


def test_lars_trust_ratio_for_kernels_and_plain_momentum_elsewhere():
    updates, _ = update(optimizers.lars(0.5, trust_coefficient=1e-3), PARAMS, ones(PARAMS))
    ratio = 1e-3 * 4.0 / 2.0  # |w| = 4, |g| = 2
    np.testing.assert_allclose(updates["dense"]["kernel"], -0.5 * ratio, rtol=1e-5)
    np.testing.assert_allclose(updates["dense"]["bias"], -0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("after", "expected"), [(False, (-0.4, -0.36 - 0.2, -0.324 - 0.18 - 0.1)), (True, (-0.4, -0.38, -0.271))]
)
def test_lars_multiplies_by_the_learning_rate_before_or_after_momentum(after, expected):
    """Gradients of 1, rates .4, .2, .1, momentum .9: by hand, after momentum .4, .2 * 1.9, .1 * 2.71."""
    rates = jnp.array([0.4, 0.2, 0.1])
    transformation = optimizers.lars(lambda step: rates[step], lr_after_momentum=after)
    params = {"bias": jnp.zeros(1)}
    state = transformation.init(params)
    for value in expected:
        updates, state = transformation.update({"bias": jnp.ones(1)}, state, params)
        np.testing.assert_allclose(updates["bias"], value, rtol=1e-6)


def test_clipping_bounds_the_global_norm():
    params = {"bias": jnp.zeros(4), "scale": jnp.zeros(4)}
    updates, _ = update(optimizers.lars(1.0, clip_norm=0.5), params, ones(params))
    np.testing.assert_allclose(optax.tree.norm(updates), 0.5, rtol=1e-5)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_learning_rate_can_be_read_from_the_state(make):
    transformation = make(schedules.warmup_cosine(0.4, 4, 100))
    state = transformation.init(PARAMS)
    rates = []
    for _ in range(3):
        _, state = transformation.update(ones(PARAMS), state, PARAMS)
        rates.append(float(optimizers.learning_rate(state)))
    np.testing.assert_allclose(rates, [0.0, 0.1, 0.2], atol=1e-7)


def test_the_learning_rate_of_optimizers_that_do_not_tell_is_none():
    assert optimizers.learning_rate(optax.sgd(0.1).init(PARAMS)) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_decay": -0.1}, "weight_decay=-0.1 must be 0 or more"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must be positive"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be a finite number"),
    ],
)
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_bad_values_are_named(make, fields, message):
    with pytest.raises(ValueError, match=message):
        make(**({"learning_rate": 0.1} | fields)).init(PARAMS)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_learning_rates_may_be_arrays_and_traced(make):
    """A sweep over rates is a vmap."""

    def moved(rate):
        return update(make(rate), {"bias": jnp.ones(2)}, {"bias": jnp.ones(2)})[0]["bias"][0]

    rates = jnp.array([0.1, 0.2])
    np.testing.assert_allclose(jax.vmap(moved)(rates), [moved(rate) for rate in rates], rtol=1e-6)


def labels(params):
    return jax.tree_util.tree_map_with_path(
        lambda keys, _: "encoder" if keys[0].key == "encoder" else "heads", params
    )


ANY = {
    "adamw with decay": lambda: optax.adamw(1e-3, weight_decay=0.1),
    "lion": lambda: optax.lion(1e-4),
    "lars": lambda: optax.lars(0.1),
    "plateau": lambda: optax.chain(optax.adam(1e-3), optax.contrib.reduce_on_plateau(patience=1)),
    "masked": lambda: optax.masked(optax.sgd(0.1), optimizers.kernels),
    "partition": lambda: optax.partition({"encoder": optax.sgd(0.1), "heads": optax.adam(1e-3)}, labels),
    "two injected rates": lambda: optax.partition(
        {name: optax.inject_hyperparams(optax.sgd)(0.1) for name in ("encoder", "heads")}, labels
    ),
    "clipped with a schedule": lambda: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 10))
    ),
}


@pytest.mark.parametrize("name", ANY)
def test_any_optax_transformation_drives_the_means_and_no_log_variance(name):
    method = tiny.byov_method(ANY[name](), variance=byov.variance.fixed())
    batch = tiny.batch()
    state = method.init(jax.random.key(0), batch)
    step, start = jax.jit(method.step), state
    for _ in range(2):
        state, info = step(state, batch, jax.random.key(1))
    assert info.skipped == 0
    assert not np.array_equal(
        state.posterior.mean["encoder"]["Dense_0"]["kernel"],
        start.posterior.mean["encoder"]["Dense_0"]["kernel"],
    )
    assert all(np.all(leaf == -10.0) for leaf in jax.tree.leaves(state.posterior.log_var))
    assert "learning_rate" not in info.to_dict() or np.isfinite(info.to_dict()["learning_rate"])


def test_under_lars_sigma_moves_by_its_own_rule():
    """The update that LARS would give log_var is below half a float32 step at -10; Adam's is not."""
    method = tiny.byov_method(optimizers.lars(0.2, weight_decay=1.5e-6), variance=byov.variance.adam(1e-3))
    batch = tiny.batch()
    state = method.init(jax.random.key(0), batch)
    step = jax.jit(method.step)
    for _ in range(5):
        state, _ = step(state, batch, jax.random.key(1))
    moved = [np.abs(np.asarray(leaf) + 10.0).mean() for leaf in jax.tree.leaves(state.posterior.log_var)]
    assert min(moved) > 1e-4
