"""Entropy, mutual information and predictive standard deviation: known values and SciPy."""

import jax
import numpy as np
import pytest
import scipy.stats
from evaluation.metrics.cases import all_cases

from byov_jax.evaluation import metrics

DRAWS = np.array(
    [
        [[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]],
        [[0.6, 0.3, 0.1], [0.1, 0.8, 0.1]],
        [[0.8, 0.1, 0.1], [0.7, 0.2, 0.1]],
        [[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]],
    ]
)


def test_values_by_hand():
    with jax.enable_x64(True):
        of_mean = metrics.entropy(DRAWS.mean(axis=0))
        mean_of = np.mean([metrics.entropy(draw) for draw in DRAWS], axis=0)
        information, std = metrics.mutual_information(DRAWS), metrics.predictive_std(DRAWS)
    np.testing.assert_allclose(of_mean, [0.8018185525, 1.0805276266], atol=5e-11)
    np.testing.assert_allclose(mean_of, [0.7851536724, 0.8615102799], atol=5e-11)
    np.testing.assert_allclose(information, [0.0166648801, 0.2190173468], atol=5e-11)
    np.testing.assert_allclose(std, [0.0707106781, 0.2449489743], atol=5e-11)


def test_entropy_is_that_of_scipy_with_zeros_too():
    probs = all_cases()[0].reshape(-1, 4)
    expected = scipy.stats.entropy(probs, axis=1)
    np.testing.assert_allclose(metrics.entropy(probs), expected, rtol=0, atol=1e-6)
    with jax.enable_x64(True):
        np.testing.assert_allclose(metrics.entropy(probs), expected, rtol=0, atol=1e-13)
    assert not np.any(np.asarray(metrics.entropy(np.eye(4))))


def test_draws_that_agree_tell_nothing_and_draws_that_exclude_each_other_tell_all():
    probs = all_cases()[0][:4].reshape(-1, 4)
    same = np.broadcast_to(probs, (7, *probs.shape))
    information = np.asarray(metrics.mutual_information(same))
    assert information.min() >= 0
    assert information.max() < 1e-6
    assert np.max(metrics.predictive_std(same)) < 1e-6
    exclusive = np.eye(4)[:, None]
    np.testing.assert_allclose(metrics.mutual_information(exclusive), [np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(metrics.predictive_std(exclusive), [np.sqrt(3) / 4], rtol=1e-6)


def test_mutual_information_is_the_mean_divergence_from_the_mean():
    draws = all_cases()[0][:40].reshape(8, -1, 4)
    divergence = scipy.stats.entropy(draws, draws.mean(axis=0)[None], axis=2).mean(axis=0)
    found = np.asarray(metrics.mutual_information(draws))
    np.testing.assert_allclose(found, divergence, rtol=0, atol=1e-6)
    assert found.min() >= 0


def test_one_draw_has_no_spread():
    assert not np.any(np.asarray(metrics.mutual_information(DRAWS[:1])))
    assert not np.any(np.asarray(metrics.predictive_std(DRAWS[:1])))


def test_logits_are_refused_and_give_nan_inside_jit():
    logits = np.array([[[0.5, 0.25, 0.25], [2.0, -1.0, 0.0]]], np.float32)
    for metric in (metrics.mutual_information, metrics.predictive_std):
        with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\], got -1 to 2"):
            metric(logits)
        np.testing.assert_array_equal(np.isnan(jax.jit(metric)(logits)), [False, True])
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\], got -1 to 2"):
        metrics.entropy(logits[0])
    np.testing.assert_array_equal(np.isnan(jax.jit(metrics.entropy)(logits[0])), [False, True])
