"""Calibration with intervals: the same metrics as one by one, paired differences, and their sign."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from byov_jax import metrics
from byov_jax.evaluation import bootstrap, comparison

N, CLASSES, REPEATS = 300, 4, 200
COUNTS = bootstrap.counts(jax.random.key(0), N, REPEATS)


def classifier(temperature=1.0, seed=0):
    """Labels are drawn from the softmax of logits; reported is the softmax at another temperature."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(N, CLASSES))
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (truth.cumsum(1) < rng.random((N, 1))).sum(1)
    reported = np.exp(logits / temperature)
    return (reported / reported.sum(1, keepdims=True)).astype(np.float32), labels.astype(np.int32)


PROBS, LABELS = classifier()
FOUND = comparison.measure(PROBS, LABELS, COUNTS)


def test_every_replicate_is_the_metric_of_its_resample():
    rows = np.repeat(np.arange(N), np.asarray(COUNTS[7], int))
    for name in ("top1", "nll", "ece", "mce", "brier", "reliability", "resolution"):
        if name in ("reliability", "resolution"):
            expected = getattr(metrics.brier_decomposition(PROBS[rows], LABELS[rows]), name)
        elif name == "top1":
            expected = metrics.top_k(PROBS[rows], LABELS[rows], 1)
        else:
            expected = getattr(metrics, name)(PROBS[rows], LABELS[rows])
        assert_allclose(FOUND.replicates[name][7], expected, atol=2e-6, err_msg=name)


def test_the_interval_holds_the_value_for_an_average():
    interval = FOUND.intervals()["top1"]
    assert interval.low < interval.value < interval.high
    error = np.sqrt(interval.value * (1 - interval.value) / N)
    assert_allclose(interval.high - interval.low, 2 * 1.96 * error, rtol=0.25)  # 200 replicates


def test_a_worse_calibrated_twin_loses_certainly_and_accuracy_ties_exactly():
    overconfident = comparison.measure(classifier(temperature=0.4)[0], LABELS, COUNTS)
    gain = {
        name: comparison.advantage(
            getattr(FOUND.report, name),
            FOUND.replicates[name],
            getattr(overconfident.report, name),
            overconfident.replicates[name],
            name,
        )
        for name in comparison.BETTER
    }
    assert gain["ece"].low > 0  # percentage points, positive is better
    assert gain["nll"].low > 0
    assert gain["reliability"].low > 0
    expected = metrics.ece(classifier(temperature=0.4)[0], LABELS) - metrics.ece(PROBS, LABELS)
    assert_allclose(gain["ece"].value, 100 * expected, rtol=1e-4)
    # A temperature keeps the order of the classes: with paired resamples nothing remains of the noise.
    assert gain["top1"] == (0.0, 0.0, 0.0)


def test_what_it_refuses():
    with pytest.raises(ValueError, match=r"counts must be \[resamples, 300\]"):
        comparison.measure(PROBS, LABELS, COUNTS[:, :10])
    with pytest.raises(ValueError, match="200 and 10 resamples"):
        comparison.advantage(0.1, COUNTS[:, 0], 0.2, COUNTS[:10, 0], "ece")
