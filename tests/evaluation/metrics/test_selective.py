"""The risk-coverage curve: its definition, and indifference to the order of ties."""

import itertools

import jax
import numpy as np
from evaluation.metrics.cases import all_cases

from byov_jax.evaluation import metrics

of_cases = jax.jit(jax.vmap(metrics.risk_coverage))


def test_a_curve_by_hand():
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
    curve = metrics.risk_coverage(probs, np.array([0, 0, 0, 0]))  # by confidence: right, wrong, right, wrong
    np.testing.assert_allclose(curve.coverage, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 2, 1 / 3, 1 / 2], rtol=1e-6)
    np.testing.assert_allclose(curve.area, np.mean([0, 1 / 2, 1 / 3, 1 / 2]), rtol=1e-6)


def test_ties_give_the_mean_over_their_orders():
    confidence, wrong = np.array([0.9, 0.8, 0.8, 0.8, 0.6, 0.6]), np.array([0, 1, 0, 0, 1, 0])
    probs = np.stack([confidence, 1 - confidence], axis=1)
    curves = [
        np.cumsum(wrong[[0, *first, *second]]) / np.arange(1, 7)
        for first in itertools.permutations([1, 2, 3])
        for second in itertools.permutations([4, 5])
    ]
    curve = metrics.risk_coverage(probs, wrong)
    np.testing.assert_allclose(curve.risk, np.mean(curves, axis=0), rtol=1e-6)
    np.testing.assert_allclose(curve.area, np.mean(curves), rtol=1e-6)


def test_the_order_of_samples_does_not_matter():
    probs, labels = all_cases()
    order = np.random.default_rng(0).permutation(labels.shape[1])
    one, other = of_cases(probs, labels), of_cases(probs[:, order], labels[:, order])
    np.testing.assert_allclose(one.risk, other.risk, rtol=0, atol=1e-6)
    np.testing.assert_allclose(one.area, other.area, rtol=0, atol=1e-6)


def test_without_ties_it_is_the_running_mean_of_the_errors():
    probs, labels = all_cases()
    found = of_cases(probs, labels)
    for i in range(0, len(probs), 4):  # the soft ones
        order = np.argsort(-probs[i].max(axis=1))
        wrong = (np.argmax(probs[i], axis=1) != labels[i])[order]
        np.testing.assert_allclose(found.risk[i], np.cumsum(wrong) / np.arange(1, 65), rtol=0, atol=1e-6)
    error_rate = np.mean(np.argmax(probs, axis=2) != labels, axis=1)
    np.testing.assert_allclose(found.risk[:, -1], error_rate, rtol=0, atol=1e-6)
