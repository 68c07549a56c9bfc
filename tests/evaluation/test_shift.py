"""Predictions under shift and their detection, on a posterior that is quick to evaluate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import byov_jax as byov
from byov_jax.evaluation import bootstrap, latent_variance, predictive, shift
from byov_jax.networks import Taps

N, SIDE, CLASSES = 24, 28, 3
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, SIDE, SIDE, 1), np.uint8)
LABELS = RNG.integers(0, CLASSES, N).astype(np.int32)
KEY = jax.random.key(3)


def apply(params, images):
    x = byov.images.to_float(images).reshape(len(images), -1)
    features = x @ params["encoder"]
    return jax.nn.softmax(features @ params["head"]), features


def taps(params, images):
    features = byov.images.to_float(images).reshape(len(images), -1) @ params["encoder"]
    return Taps(features, 2.0 * features, features @ params["head"])


Q = byov.posterior.init(
    {
        "encoder": jnp.asarray(RNG.normal(size=(SIDE**2, 5)) / SIDE, jnp.float32),
        "head": jnp.asarray(RNG.normal(size=(5, CLASSES)), jnp.float32),
    },
    log_var=-6.0,
)


def test_each_severity_is_predicted_as_if_alone():
    found = shift.predict_shifted("gaussian_noise", KEY, Q, apply, IMAGES, draws=3)
    assert found.mc.probs.shape == (5, N, CLASSES)
    shift_key, draw_key = jax.random.split(KEY)
    noisy = byov.shifts.apply("gaussian_noise", 4, shift_key, IMAGES)
    alone = predictive.statistics(draw_key, Q, apply, noisy, 3)
    assert_allclose(found.mc.probs[3], alone.probs, rtol=1e-5)
    assert_allclose(found.mc.mutual_information[3], alone.mutual_information, atol=1e-6)
    assert_allclose(found.mean.probs[3], apply(Q.mean, noisy)[0], rtol=1e-5)


def test_a_deterministic_model_is_predicted_once():
    found = shift.predict(
        KEY, byov.posterior.Posterior(Q.mean, {"encoder": None, "head": None}), apply, IMAGES, 30
    )
    assert found.mc is found.mean
    assert_array_equal(found.mc.mutual_information, np.zeros(N))


def test_both_modes_are_measured():
    found = shift.predict(KEY, Q, apply, IMAGES, 3)
    measured = shift.calibration(found, LABELS, bootstrap.counts(KEY, N, 10))
    for mode, prediction in found._asdict().items():
        assert_allclose(measured[mode].report.ece, byov.metrics.ece(prediction.probs, LABELS), atol=1e-6)
        assert_allclose(measured[mode].report.nll, byov.metrics.nll(prediction.probs, LABELS), atol=1e-6)


def test_detection_of_what_is_obviously_different():
    inside = shift.predict(KEY, Q, apply, IMAGES // 8, 5).mc
    outside = shift.predict(KEY, Q, apply, IMAGES, 5).mc
    found = shift.detect(inside, outside)
    assert set(found) == set(shift.SCORES)
    # Brighter images multiply the noise of the weights: every one of them varies more.
    assert found["latent_variance"] == (1.0, 1.0, 0.0)
    same = shift.detect(inside, inside)
    assert_allclose(same["entropy"].auroc, 0.5, atol=1e-6)


def test_latent_variance_is_that_of_the_draws():
    found = latent_variance.latent_variance(KEY, Q, taps, IMAGES, draws=8)
    features = np.asarray(predictive.predict(KEY, Q, taps, IMAGES, 8).encoder)
    assert_allclose(found["encoder"].variance, features.var(0).mean(-1), rtol=1e-4)
    assert_allclose(
        found["encoder"].relative, features.var(0).mean(-1) / np.square(features).mean((0, 2)), rtol=1e-4
    )
    assert_allclose(found["projector"].variance, 4 * found["encoder"].variance, rtol=1e-5)
    assert_allclose(found["projector"].relative, found["encoder"].relative, rtol=1e-5)


def test_latent_variance_grows_with_noise_in_a_linear_model():
    """The variance of x w is |x|^2 sigma^2, and noise around black can only add to |x|^2."""
    black = np.zeros_like(IMAGES)
    found = latent_variance.against_noise(KEY, Q, taps, black, draws=20, strengths=(0.0, 0.1, 0.2, 0.4))
    variance = np.asarray(found["encoder"].variance)
    assert variance.shape == (4, N)
    assert_array_equal(variance[0], np.zeros(N))
    assert np.all(np.diff(variance, axis=0) > 0)
    # Half of the noise is cut off at 0, and above 1 little is: |x|^2 = n sigma^2 / 2. The mean over 24
    # images x 5 features that share 20 draws is within a few percent of it.
    expected = SIDE**2 * 0.2**2 / 2 * np.exp(-6.0)
    assert_allclose(variance[2].mean(), expected, rtol=0.15)


def test_unknown_shifts_are_refused():
    with pytest.raises(ValueError, match="fog"):
        shift.predict_shifted("fog", KEY, Q, apply, IMAGES, 3)
