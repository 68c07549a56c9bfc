"""The percentile bootstrap: resamples, quantiles, coverage of the truth, and paired gains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose

from byov_jax.evaluation import bootstrap, metrics

KEY = jax.random.key(0)
N, CLASSES, REPEATS = 300, 4, 200
COUNTS = bootstrap.counts(KEY, N, REPEATS)


def classifier(temperature=1.0, seed=0):
    """Labels are drawn from the softmax of logits; reported is the softmax at another temperature."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(N, CLASSES))
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (truth.cumsum(1) < rng.random((N, 1))).sum(1)
    reported = np.exp(logits / temperature)
    return (reported / reported.sum(1, keepdims=True)).astype(np.float32), labels.astype(np.int32)


PROBS, LABELS = classifier()
FOUND = bootstrap.calibration(PROBS, LABELS, COUNTS)


def test_counts_are_those_of_the_indices():
    indices, counts = bootstrap.indices(KEY, 40, 300), bootstrap.counts(KEY, 40, 300)
    assert indices.dtype == jnp.int32
    assert counts.dtype == jnp.float32
    np.testing.assert_array_equal(counts, [np.bincount(row, minlength=40) for row in np.asarray(indices)])


def test_every_sample_is_as_likely_as_any_other():
    drawn = np.bincount(np.ravel(bootstrap.indices(KEY, 40, 300)), minlength=40)
    assert scipy.stats.chisquare(drawn).pvalue > 1e-3
    assert scipy.stats.chisquare(drawn[:20]).pvalue > 1e-3


def test_resamples_differ_and_depend_on_the_key_alone():
    first = bootstrap.indices(KEY, 40, 300)
    np.testing.assert_array_equal(first, bootstrap.indices(KEY, 40, 300))
    assert not np.array_equal(first, bootstrap.indices(jax.random.key(1), 40, 300))
    assert len(np.unique(first, axis=0)) == 300


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_the_interval_is_the_middle_of_the_replicates(level):
    replicates = np.random.default_rng(0).normal(size=(101, 2, 3)).astype(np.float32)
    found = bootstrap.estimate(replicates.mean(axis=0), replicates, level)
    ends = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2], axis=0)
    np.testing.assert_array_equal(found.value, replicates.mean(axis=0))
    np.testing.assert_allclose((found.low, found.high), ends, rtol=1e-5, atol=1e-6)


def test_whole_numbers_have_intervals_between_them():
    found = bootstrap.estimate(2.0, np.arange(11), 0.5)
    np.testing.assert_array_equal(found, [2.0, 2.5, 7.5])


def test_a_statistic_that_is_undefined_once_has_no_interval():
    replicates = np.array([[1.0, 2.0], [np.nan, 2.0], [3.0, 2.0]], np.float32)
    low, high = bootstrap.interval(replicates)
    np.testing.assert_array_equal((low, high), [[np.nan, 2.0], [np.nan, 2.0]])


def test_double_precision_is_kept():
    with jax.enable_x64(True):
        assert all(x.dtype == jnp.float64 for x in bootstrap.estimate(0.0, jnp.arange(5.0)))
        assert all(x.dtype == jnp.float32 for x in bootstrap.estimate(0.0, np.arange(5, dtype=np.float32)))


def test_the_interval_of_a_mean_covers_the_truth_as_often_as_theory_says():
    """For normal data the exact coverage is known: the interval is one of Student's with a fixed width."""
    datasets, n, repeats, level = 800, 40, 200, 0.9
    x = jax.random.normal(jax.random.key(1), (datasets, n))

    @jax.jit
    @jax.vmap
    def ends(key, x):
        return bootstrap.interval(bootstrap.counts(key, n, repeats) @ x / n, level)

    low, high = ends(jax.random.split(KEY, datasets), x)
    # Resampled means spread by std(ddof 0) / sqrt(n); the interpolated quantile of `repeats` has this mass.
    mass = ((repeats - 1) * (1 - level) / 2 + 1) / (repeats + 1)
    width = -scipy.stats.norm.ppf(mass) * np.sqrt((n - 1) / n)
    expected = 1 - 2 * scipy.stats.t.sf(width, n - 1)
    error = np.sqrt(expected * (1 - expected) / datasets)
    assert abs(np.mean((low < 0) & (high > 0)) - expected) < 4 * error


@pytest.mark.parametrize(("n", "repeats"), [(0, 5), (5, 0), (-1, 5)])
def test_there_must_be_samples_and_repeats(n, repeats):
    for draw in (bootstrap.indices, bootstrap.counts):
        with pytest.raises(ValueError, match=f"at least 1, got n={n} and repeats={repeats}"):
            draw(KEY, n, repeats)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, float("nan")])
def test_the_level_is_a_probability(level):
    with pytest.raises(ValueError, match="level must be above 0 and below 1"):
        bootstrap.interval(np.ones(3), level)


def test_replicates_lie_along_the_first_axis():
    with pytest.raises(ValueError, match="repeats above 0"):
        bootstrap.interval(np.ones((0, 2)))
    with pytest.raises(ValueError, match="repeats above 0"):
        bootstrap.interval(np.array(1.0))
    with pytest.raises(ValueError, match=r"value has shape \(2,\), replicates \(2, 5\)"):
        bootstrap.estimate(np.ones(2), np.ones((2, 5)))


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
    overconfident = bootstrap.calibration(classifier(temperature=0.4)[0], LABELS, COUNTS)
    gain = {
        name: bootstrap.gain(
            getattr(FOUND.report, name),
            FOUND.replicates[name],
            getattr(overconfident.report, name),
            overconfident.replicates[name],
            name,
        )
        for name in bootstrap.BETTER
    }
    assert gain["ece"].low > 0  # percentage points, positive is better
    assert gain["nll"].low > 0
    assert gain["reliability"].low > 0
    expected = metrics.ece(classifier(temperature=0.4)[0], LABELS) - metrics.ece(PROBS, LABELS)
    assert_allclose(gain["ece"].value, 100 * expected, rtol=1e-4)
    # A temperature keeps the order of the classes: with paired resamples nothing remains of the noise.
    assert gain["top1"] == (0.0, 0.0, 0.0)


def test_resamples_must_match():
    with pytest.raises(ValueError, match=r"counts must be \[resamples, 300\]"):
        bootstrap.calibration(PROBS, LABELS, COUNTS[:, :10])
    with pytest.raises(ValueError, match="same resamples on both sides, got 200 and 10"):
        bootstrap.gain(0.1, COUNTS[:, 0], 0.2, COUNTS[:10, 0], "ece")
