"""Gradients of the metrics: temperature scaling, finite differences, and points where formulas have none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from jax.test_util import check_grads

from byov_jax.evaluation import metrics

RNG = np.random.default_rng(0)
N, CLASSES = 400, 5
LABELS = RNG.integers(0, CLASSES, N)
LOGITS = (3 * RNG.normal(size=(N, CLASSES)) + 4 * np.eye(CLASSES)[LABELS]).astype(np.float32)


def at(log_temperature, metric, logits=LOGITS):
    return metric(jax.nn.softmax(logits * jnp.exp(-log_temperature)), LABELS)


def calibrate(metric):
    """A field of the report of the accumulator."""

    def compute(probs, labels):
        return getattr(metrics.Calibration.init(CLASSES).update(probs, labels).compute(), metric)

    return compute


@pytest.mark.parametrize("metric", [metrics.nll, calibrate("nll")])
def test_gradient_descent_finds_the_temperature(metric):
    def exact(temperature):
        logs = scipy.special.log_softmax(LOGITS.astype(np.float64) / temperature, axis=1)
        return -np.mean(logs[np.arange(N), LABELS])

    best = scipy.optimize.minimize_scalar(exact, bounds=(0.2, 5), method="bounded", options={"xatol": 1e-9}).x
    step = jax.jit(lambda t: t - 0.5 * jax.grad(at)(t, metric))
    log_temperature = jnp.float32(1.0)
    for _ in range(100):
        log_temperature = step(log_temperature)
    assert np.exp(log_temperature) == pytest.approx(best, rel=1e-3)


SMOOTH = {
    "nll": metrics.nll,
    "brier": metrics.brier,
    "ece": metrics.ece,
    "mce": metrics.mce,
    "adaptive_ece": metrics.adaptive_ece,
    "reliability": lambda p, y: metrics.brier_decomposition(p, y).reliability,
    "within_covariance": lambda p, y: metrics.brier_decomposition(p, y).within_covariance,
    "Calibration.nll": calibrate("nll"),
    "Calibration.brier": calibrate("brier"),
    "Calibration.ece": calibrate("ece"),
    "Calibration.mce": calibrate("mce"),
    "Calibration.entropy": calibrate("entropy"),
    "Calibration.reliability": calibrate("reliability"),
    "entropy": lambda p, y: jnp.mean(metrics.entropy(p)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_the_gradient_is_the_finite_difference(name):
    """In 64 bits, at a temperature where no sample changes its bin within the step."""
    with jax.enable_x64(True):
        value = jax.jit(lambda t: at(t, SMOOTH[name], LOGITS.astype(np.float64)))
        t, step = jnp.asarray(0.3), 1e-7
        difference = (value(t + step) - value(t - step)) / (2 * step)
        assert abs(difference) > 1e-4
        np.testing.assert_allclose(jax.grad(value)(t), difference, rtol=1e-5)
        np.testing.assert_allclose(jax.jacfwd(value)(t), difference, rtol=1e-5)


def test_second_derivatives_of_smooth_metrics():
    for metric in (metrics.nll, metrics.brier):
        with jax.enable_x64(True):
            value = jax.jit(lambda t, metric=metric: at(t, metric, LOGITS.astype(np.float64)))
            check_grads(value, (jnp.asarray(0.3),), order=2, modes=["fwd", "rev"], rtol=1e-4)


COUNTS = {
    "top_k": lambda p, y: metrics.top_k(p, y, 2),
    "risk_coverage": lambda p, y: metrics.risk_coverage(p, y).area,
    "auroc": lambda p, y: metrics.auroc(p[:, 0], p[:, 1]),
    "aupr": lambda p, y: metrics.aupr(p[:, 0], p[:, 1]),
    "fpr95": lambda p, y: metrics.fpr95(p[:, 0], p[:, 1]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_what_counts_or_ranks_is_constant(name):
    assert jax.grad(at)(0.3, COUNTS[name]) == 0.0
    assert jax.jit(jax.grad(lambda t: at(t, COUNTS[name])))(0.3) == 0.0


@pytest.mark.parametrize("name", SMOOTH)
def test_confident_samples_have_finite_gradients(name):
    """Probabilities of exactly 0 and 1, from logits whose softmax underflows."""
    logits = np.where(np.arange(N)[:, None] % 2, LOGITS, 200 * LOGITS)
    probs = np.asarray(jax.nn.softmax(logits))
    assert np.any(probs == 0)
    assert np.any(probs == 1)
    assert np.isfinite(jax.grad(lambda t: at(t, SMOOTH[name], logits))(0.3))
    assert np.isfinite(jax.grad(lambda p: SMOOTH[name](p, LABELS))(jnp.asarray(probs))).all()


def test_the_entropy_of_a_softmax_is_flat_where_it_is_certain():
    """0 log 0 = 0: the derivative by a logit, p log p + ..., vanishes with p."""
    logits = jnp.array([[0.0, 300.0, -300.0], [0.0, 1.0, 2.0]])
    found = jax.grad(lambda z: jnp.sum(metrics.entropy(jax.nn.softmax(z))))(logits)
    p = np.asarray(jax.nn.softmax(logits), np.float64)
    entropy = -np.sum(scipy.special.xlogy(p, p), axis=1, keepdims=True)
    np.testing.assert_allclose(found, -(scipy.special.xlogy(p, p) + p * entropy), atol=1e-6)


def test_draws_that_agree_have_zero_gradients():
    draws = jnp.broadcast_to(jax.nn.softmax(LOGITS)[None], (4, N, CLASSES))
    assert not np.any(jax.grad(lambda d: jnp.sum(metrics.predictive_std(d)))(draws))
    information = jax.grad(lambda d: jnp.sum(metrics.mutual_information(d)))(draws)
    np.testing.assert_allclose(information, 0, atol=1e-6)


def test_the_gradient_of_the_standard_deviation():
    draws = jax.nn.softmax(jnp.asarray(RNG.normal(size=(6, 3, CLASSES)), jnp.float32))
    found = jax.grad(lambda d: jnp.sum(metrics.predictive_std(d)))(draws)
    predicted = np.argmax(np.mean(draws, axis=0), axis=1)
    chosen = np.asarray(draws)[:, np.arange(3), predicted]
    expected = np.zeros(draws.shape)
    expected[:, np.arange(3), predicted] = (chosen - chosen.mean(axis=0)) / (6 * chosen.std(axis=0))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_gradients_can_be_mapped():
    temperatures = jnp.array([-0.2, 0.3, 0.8])
    for metric in (metrics.ece, metrics.nll):
        mapped = jax.jit(jax.vmap(jax.grad(lambda t, metric=metric: at(t, metric))))(temperatures)
        one_by_one = [jax.grad(at)(t, metric) for t in temperatures]
        np.testing.assert_allclose(mapped, one_by_one, rtol=1e-4)
