"""Variance rules: the gradient rule against Adam by hand, closed-form rules in the same interface."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from byov_jax import Posterior, posterior, variance
from byov_jax.bayes.variance import Evidence, VarianceRule

Q = Posterior({"a": jnp.array([0.5, -0.2]), "b": jnp.array([1.0])}, {"a": jnp.array([-2.0, -1.0]), "b": None})
DATA = Evidence(
    mean={"a": jnp.array([0.3, -0.1]), "b": jnp.array([0.7])},
    log_var={"a": jnp.array([0.2, -0.4]), "b": None},
    prior_mean=0.25,
    prior_log_var=-1.0,
    kl_weight=0.5,
)


def test_the_gradient_rule_adds_the_kl_in_closed_form():
    rule = variance.gradient(optax.sgd(1.0))
    log_var, _ = rule.update(DATA, rule.init(Q), Q)
    kl = jax.grad(lambda rho: posterior.kl(Q._replace(log_var=rho), 0.25, -1.0))(Q.log_var)
    expected = Q.log_var["a"] - (DATA.log_var["a"] + 0.5 * kl["a"])
    np.testing.assert_allclose(log_var["a"], expected, rtol=1e-6)
    assert log_var["b"] is None


def test_adam_moves_by_its_learning_rate_whatever_the_size_of_the_gradient():
    rule = variance.adam(0.1)
    tiny = DATA._replace(log_var={"a": jnp.array([1e-6, -1e-6]), "b": None}, kl_weight=0.0)
    log_var, _ = rule.update(tiny, rule.init(Q), Q)
    np.testing.assert_allclose(log_var["a"] - Q.log_var["a"], [-0.1, 0.1], rtol=1e-2)


def test_fixed_keeps_the_log_variances():
    rule = variance.fixed()
    assert rule.update(DATA, rule.init(Q), Q)[0] is Q.log_var


def squared_gradient(decay=0.9, damping=0.3, log_var=-9.0):
    """Vadam's curvature as a rule: sigma falls where the gradient of the mean is large."""

    def init(q):
        return jax.tree.map(jnp.zeros_like, q.log_var), jnp.zeros(())

    def update(evidence, state, q):
        v, count = state
        count += 1
        gradient = jax.tree.map(lambda g, rho: None if rho is None else g, evidence.mean, q.log_var)
        v = jax.tree.map(lambda v, g: decay * v + (1 - decay) * jnp.square(g), v, gradient)
        scale = jnp.mean(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(v)]))
        return jax.tree.map(lambda v: log_var - jnp.log(v / scale + damping), v), (v, count)

    return VarianceRule(init, update)


def test_rules_in_closed_form_fit_the_interface():
    rule = squared_gradient()
    state = rule.init(Q)
    for _ in range(3):
        log_var, state = rule.update(DATA, state, Q)
    assert log_var["a"][0] < log_var["a"][1]  # its gradient is the larger one
    assert log_var["b"] is None


def test_the_curvature_of_natural_gradients_is_that_of_a_quadratic():
    """For a loss `h w^2 / 2`, `2 * d data / d log_var / sigma^2` is `h`, in expectation over the draws."""
    h, keys = 3.0, jax.random.split(jax.random.key(0), 100_000)
    q = Posterior({"w": jnp.array([0.4])}, {"w": jnp.array([-2.0])})

    def loss(rho):
        draws = jax.vmap(lambda key: posterior.sample(key, q._replace(log_var={"w": rho}))["w"])(keys)
        return jnp.mean(0.5 * h * draws**2)

    gradient = jax.jit(jax.grad(loss))(q.log_var["w"])
    np.testing.assert_allclose(2.0 * gradient / jnp.exp(q.log_var["w"]), [h], rtol=0.02)


@pytest.mark.parametrize("rule", [variance.adam(), variance.fixed(), squared_gradient()])
def test_rules_run_inside_jit_and_scan(rule):
    def body(carry, _):
        q, state = carry
        log_var, state = rule.update(DATA, state, q)
        return (q._replace(log_var=log_var), state), None

    (q, _), _ = jax.jit(lambda carry: jax.lax.scan(body, carry, length=5))((Q, rule.init(Q)))
    assert np.all(np.isfinite(q.log_var["a"]))


@pytest.mark.parametrize("fields", [{"learning_rate": -1.0}, {"learning_rate": float("nan")}, {"b2": 1.0}])
def test_what_a_config_refuses_is_refused_here(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}=.* must be"):
        variance.adam(**fields)
