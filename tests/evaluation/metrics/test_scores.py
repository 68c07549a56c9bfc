"""Accuracy, likelihood and the Brier score: known values, scikit-learn, and the identity of the parts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from evaluation.metrics.cases import CLASSES, P, Y, all_cases

from byov_jax.evaluation import metrics


@functools.cache
def over_cases(function, x64):
    """The metric of every case, compiled once."""
    probs, labels = all_cases()
    with jax.enable_x64(x64):
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(function))(jnp.asarray(probs), jnp.asarray(labels)))


def test_values_by_hand():
    with jax.enable_x64(True):
        found = [metrics.top_k(P, Y, 1), metrics.top_k(P, Y, 2), metrics.nll(P, Y), metrics.brier(P, Y)]
        parts = metrics.brier_decomposition(P, Y)
    np.testing.assert_allclose(found, [0.7, 0.9, 0.6219139899, 0.35296], rtol=0, atol=5e-11)
    np.testing.assert_allclose(parts, [0.1027933333, 0.2433333333, 0.66, 0.08325], rtol=0, atol=5e-11)
    assert parts._fields == ("reliability", "resolution", "uncertainty", "within_covariance")
    assert all(value.dtype == jnp.float64 for value in (*found, *parts))


def test_top_k_is_that_of_scikit_learn():
    probs, labels = all_cases()
    found = over_cases(lambda p, y: jnp.stack([metrics.top_k(p, y, k) for k in (1, 2, 3)]), x64=False)
    # scikit-learn puts the higher of equally probable classes first: in reversed order, the lower one.
    expected = [
        [
            sklearn.metrics.top_k_accuracy_score(CLASSES - 1 - y, p[:, ::-1], k=k, labels=np.arange(CLASSES))
            for k in (1, 2, 3)
        ]
        for p, y in zip(probs, labels, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_lower_of_equally_probable_classes_comes_first():
    even = np.full((4, 4), 0.25)
    assert [float(metrics.top_k(even, np.arange(4), k)) for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert float(metrics.top_k(even[:1], np.array([0]), 1)) == 1.0
    assert float(metrics.top_k(even[:1], np.array([1]), 1)) == 0.0


def test_nll_is_the_log_loss_of_scikit_learn():
    probs, labels = all_cases()
    own = np.take_along_axis(probs, labels[:, :, None], axis=2)
    compared = np.flatnonzero(own.min(axis=(1, 2)) > 1e-15)  # below, scikit-learn clips
    assert len(compared) > 900
    expected = [sklearn.metrics.log_loss(labels[i], probs[i], labels=np.arange(CLASSES)) for i in compared]
    for x64, tolerance in ((False, 1e-6), (True, 1e-12)):
        found = over_cases(metrics.nll, x64)[compared]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-15)


def test_an_impossible_label_has_the_nll_of_the_smallest_number():
    sure, wrong = np.array([[1.0, 0.0]]), np.array([1])
    np.testing.assert_allclose(metrics.nll(sure, wrong), 126 * np.log(2), rtol=1e-6)
    assert float(metrics.nll(sure, 1 - wrong)) == 0.0
    with jax.enable_x64(True):
        np.testing.assert_allclose(metrics.nll(sure, wrong), 1022 * np.log(2), rtol=1e-12)


def test_brier_is_that_of_scikit_learn():
    probs, labels = all_cases()
    expected = [
        sklearn.metrics.brier_score_loss(y, p, labels=np.arange(CLASSES), scale_by_half=False)
        for p, y in zip(probs, labels, strict=True)
    ]
    for x64, tolerance in ((False, 1e-6), (True, 1e-12)):
        np.testing.assert_allclose(over_cases(metrics.brier, x64), expected, rtol=0, atol=tolerance)


def test_brier_of_two_classes_is_twice_that_of_one():
    probs, labels = all_cases()
    pairs, halves = probs.reshape(*probs.shape[:2], 2, 2).sum(axis=3), labels // 2
    found = jax.jit(jax.vmap(metrics.brier))(pairs, halves)
    expected = [
        2 * sklearn.metrics.brier_score_loss(y, np.minimum(p[:, 1], 1.0), labels=[0, 1])
        for p, y in zip(pairs[::9], halves[::9], strict=True)
    ]
    np.testing.assert_allclose(found[::9], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("x64", "tolerance"), [(False, 1e-6), (True, 1e-12)])
def test_the_parts_add_up_to_the_brier_score(x64, tolerance):
    parts = over_cases(metrics.brier_decomposition, x64)
    total = parts.uncertainty - parts.resolution + parts.reliability - 2 * parts.within_covariance
    np.testing.assert_allclose(total, over_cases(metrics.brier, x64), rtol=0, atol=tolerance)
    assert min(parts.reliability.min(), parts.resolution.min(), parts.uncertainty.min()) >= -tolerance


def test_the_parts_are_their_definitions():
    """Also with unbalanced labels, classes never predicted and classes without labels."""
    probs, labels = all_cases()
    found = over_cases(metrics.brier_decomposition, x64=True)
    for i in range(0, len(probs), 5):
        p, y = probs[i], np.eye(CLASSES)[labels[i]]
        predicted = np.argmax(p, axis=1)
        d, m = (np.stack([x[predicted == k].mean(axis=0) for k in predicted]) for x in (y, p))
        expected = (
            np.mean(np.sum((p - d) ** 2, axis=1)),
            np.mean(np.sum((d - y.mean(axis=0)) ** 2, axis=1)),
            1 - np.sum(y.mean(axis=0) ** 2),
            np.mean(np.sum((p - m) * (y - d), axis=1)),
        )
        np.testing.assert_allclose([part[i] for part in found], expected, rtol=0, atol=1e-12)


def test_a_thousand_classes_and_a_single_sample():
    rng = np.random.default_rng(0)
    probs = rng.random((300, 1000)) ** 20
    probs /= probs.sum(axis=1, keepdims=True)
    labels = np.where(rng.random(300) < 0.5, np.argmax(probs, axis=1), rng.integers(0, 1000, 300))
    parts, brier = metrics.brier_decomposition(probs, labels), metrics.brier(probs, labels)
    total = parts.uncertainty - parts.resolution + parts.reliability - 2 * parts.within_covariance
    np.testing.assert_allclose(total, brier, rtol=0, atol=1e-6)
    np.testing.assert_allclose(metrics.brier_decomposition(P[:1], Y[:1]), [0.0122, 0, 0, 0], atol=1e-7)


def test_half_precision_is_computed_in_single_precision():
    half = jnp.asarray(P, jnp.bfloat16)
    for metric in (metrics.nll, metrics.brier):
        assert metric(half, Y).dtype == jnp.float32
        np.testing.assert_allclose(
            metric(half, Y), jax.jit(metric)(np.asarray(half, np.float32), Y), rtol=1e-6
        )
