"""Calibration errors: known values, bin edges, netcal, and classifiers whose error is known."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from evaluation.metrics.cases import BINS, COUNT, N, P, Y, all_cases

from byov_jax.evaluation import metrics


def test_values_by_hand():
    with jax.enable_x64(True):
        found = [
            metrics.ece(P, Y),
            metrics.ece(P, Y, bins=10),
            metrics.mce(P, Y),
            metrics.adaptive_ece(P, Y, 5),
        ]
    np.testing.assert_allclose(found, [0.25, 0.25, 0.55, 0.248], rtol=0, atol=1e-12)


def test_a_confidence_on_an_edge_belongs_below():
    probs = np.array([[0.75, 0.25], [0.75, 0.25], [0.625, 0.375], [0.875, 0.125]])
    labels = np.array([0, 1, 0, 0])
    with jax.enable_x64(True):
        assert float(metrics.ece(probs, labels, bins=4)) == pytest.approx(0.0625, abs=1e-12)
    np.testing.assert_array_equal(metrics.reliability_bins(probs, labels, bins=4).samples, [0, 0, 3, 1])


@pytest.mark.parametrize("x64", [False, True])
def test_every_edge_of_fifteen_bins_belongs_below_in_any_precision(x64):
    upper = np.arange(8, 16) / 15
    dtype = np.float64 if x64 else np.float32
    above = np.append(np.nextafter(upper.astype(dtype)[:-1], dtype(1)), dtype(1))
    with jax.enable_x64(x64):
        for confidence, expected in ((upper, np.ones(8)), (above, [0, *np.ones(6), 2])):
            probs = np.stack([confidence, 1 - confidence], axis=1).astype(dtype)
            found = metrics.reliability_bins(probs, np.zeros(len(probs), int))
            np.testing.assert_array_equal(found.samples[7:], expected)


def test_certain_and_even_predictions():
    sure = metrics.reliability_bins(np.eye(3), np.array([0, 1, 0]))
    np.testing.assert_array_equal(sure.samples, [0] * 14 + [3])
    np.testing.assert_allclose([sure.confidence[-1], sure.accuracy[-1]], [1, 2 / 3], rtol=1e-6)
    assert not np.any(np.asarray(sure.accuracy[:-1]))
    for metric in (metrics.ece, metrics.mce, metrics.adaptive_ece):
        even = float(metric(np.array([[0.5, 0.5]]), np.array([1])))  # class 0 is predicted, at confidence 1/2
        assert even == 0.5
        if metric is not metrics.adaptive_ece:  # which has 15 bins for 3 samples
            np.testing.assert_allclose(metric(np.eye(3), np.array([0, 1, 0])), 1 / 3, rtol=1e-6)


def test_they_are_those_of_netcal():
    reference = json.loads(pathlib.Path(__file__).with_name("netcal_reference.json").read_text())["values"]
    assert len(reference) == COUNT

    def errors(probs, labels):
        bins = metrics.reliability_bins(probs, labels, BINS)
        gaps, used = jnp.abs(bins.accuracy - bins.confidence), jnp.sum(bins.samples > 0)
        fixed = (metrics.ece(probs, labels, BINS), metrics.mce(probs, labels, BINS), jnp.sum(gaps) / used)
        return jnp.stack([*fixed, metrics.adaptive_ece(probs, labels, BINS)])

    for x64, tolerance in ((False, 1e-6), (True, 1e-9)):
        with jax.enable_x64(x64):
            found = np.asarray(jax.jit(jax.vmap(errors))(*map(jnp.asarray, all_cases())))
        np.testing.assert_allclose(found[:, :3], [row[:3] for row in reference], rtol=0, atol=tolerance)
        untied = [i for i, row in enumerate(reference) if len(row) == 4]
        assert len(untied) > 1000
        np.testing.assert_allclose(
            found[untied, 3], [reference[i][3] for i in untied], rtol=0, atol=tolerance
        )


@pytest.mark.parametrize("bins", [5, 7, 100])
def test_bins_of_equal_mass_are_cut_like_an_array(bins):
    """Ties stay in the order of the samples, and bins may outnumber the samples."""
    probs, labels = all_cases()
    found = jax.jit(jax.vmap(lambda p, y: metrics.adaptive_ece(p, y, bins)))(probs, labels)
    for i in range(0, COUNT, 7):
        confidence, hits = probs[i].max(axis=1), np.argmax(probs[i], axis=1) == labels[i]
        order = np.argsort(confidence.astype(np.float32), kind="stable")
        parts = np.array_split((hits - confidence)[order], bins)
        np.testing.assert_allclose(found[i], sum(abs(part.sum()) for part in parts) / N, rtol=0, atol=1e-6)


def test_a_calibrated_classifier_has_the_error_of_its_sample_size():
    """Labels follow the probabilities: gaps have variance sum c (1 - c), and E|gap| = sqrt(2 / pi) std."""
    rng = np.random.default_rng(0)
    n, repeats = 3000, 300
    probs = rng.random((n, 4)) ** 3
    probs /= probs.sum(axis=1, keepdims=True)
    cumulative = np.cumsum(probs, axis=1)[:, :-1]
    labels = (rng.random((repeats, n, 1)) > cumulative[None]).sum(axis=2)
    confidence = probs.max(axis=1)
    variance = np.histogram(confidence, np.linspace(0, 1, 16), weights=confidence * (1 - confidence))[0]
    expected = np.sum(np.sqrt(2 / np.pi * variance)) / n
    noise = np.sqrt((1 - 2 / np.pi) * np.sum(variance) / repeats) / n
    found = jax.jit(jax.vmap(metrics.ece, in_axes=(None, 0)))(probs.astype(np.float32), labels)
    assert expected < 0.03
    assert abs(np.mean(found) - expected) < 4 * noise


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_wrong_temperature_has_its_analytic_error(temperature):
    """Right with probability sigmoid(z), reported as sigmoid(z / T): the gap never changes sign."""
    rng = np.random.default_rng(1)
    n, spread = 2**17, 2.0
    z = scipy.stats.norm.ppf((np.arange(n) + 0.5) / n) * spread
    labels = (rng.random(n) < scipy.special.expit(z)).astype(np.int32)
    reported = scipy.special.expit(z / temperature)

    def gap(x):
        difference = scipy.special.expit(abs(x)) - scipy.special.expit(abs(x) / temperature)
        return abs(difference) * scipy.stats.norm.pdf(x, scale=spread)

    expected = 2 * scipy.integrate.quad(gap, 0, 40)[0]
    probs = np.stack([1 - reported, reported], axis=1)
    noise = np.sqrt(np.mean(scipy.special.expit(z) * scipy.special.expit(-z)) / n)
    assert expected > 50 * noise
    assert abs(float(metrics.ece(probs, labels)) - expected) < 4 * noise
    assert abs(float(metrics.adaptive_ece(probs, labels)) - expected) < 4 * noise
