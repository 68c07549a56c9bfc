"""Gains over a baseline: as `byov_jax.evaluation` computes them, and only between comparable runs."""

import dataclasses

import numpy as np
import pytest
from report.synthetic import write_run

from byov_jax.errors import RunError
from byov_jax.evaluation import bootstrap
from byov_jax.report import gains, runs


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [runs.read(write_run(root / method, method, curves=False)) for method in ("byov", "byol")]


@pytest.mark.parametrize("metric", ["top1", "ece", "nll"])
@pytest.mark.parametrize("mode", ["mean", "mc"])
def test_clean_gains_are_those_of_the_evaluation(pair, mode, metric):
    run, baseline = pair
    found = gains.clean(run, baseline, mode, metric)
    expected = bootstrap.gain(
        run.parts["calibration"][mode][metric]["value"],
        run.arrays("calibration")[f"{mode}/replicates/{metric}"],
        baseline.parts["calibration"]["mean"][metric]["value"],
        baseline.arrays("calibration")[f"mean/replicates/{metric}"],
        metric,
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_what_the_evaluation_compared_is_taken_from_it(pair):
    run, baseline = pair
    recorded = {"calibration": {"mc": {"ece": {"value": 1.5, "low": 1.0, "high": 2.0}}}}
    run = dataclasses.replace(run, compared={"run": str(baseline.path), "gain": recorded})
    assert gains.clean(run, baseline, "mc", "ece") == (1.5, 1.0, 2.0)
    other = dataclasses.replace(run, compared={"run": "elsewhere", "gain": recorded})
    assert gains.clean(other, baseline, "mc", "ece") != (1.5, 1.0, 2.0)


def test_gains_under_shift_are_means_of_paired_differences(pair):
    run, baseline = pair
    found = gains.under_shift(run, baseline, "mc", "reliability")
    mine, theirs = (
        of.arrays("shift")[f"{mode}/replicates/reliability"] for of, mode in ((run, "mc"), (baseline, "mean"))
    )
    difference = 100 * (theirs - mine)
    # The made-up values are the means of their replicates.
    np.testing.assert_allclose(found.by_shift.value, difference.mean(axis=(1, 2)))
    np.testing.assert_allclose(found.by_severity.value, difference.mean(axis=(0, 2)))
    np.testing.assert_allclose(found.overall.value, difference.mean())
    np.testing.assert_allclose(found.by_shift.low, np.quantile(difference.mean(axis=1), 0.025, axis=1))
    np.testing.assert_allclose(found.overall.high, np.quantile(difference.mean(axis=(0, 1)), 0.975))


def test_nothing_is_gained_over_nothing_or_oneself(pair):
    run, _ = pair
    for baseline in (None, run):
        assert gains.clean(run, baseline, "mc", "ece") is None
        assert gains.under_shift(run, baseline, "mc", "ece") is None


@pytest.mark.parametrize("changed", [{"seed": 1}, {"data": "other"}])
def test_other_data_or_other_resamples_are_not_compared(pair, changed):
    run, baseline = pair
    settings = {part: kept | changed for part, kept in baseline.settings.items()}
    baseline = dataclasses.replace(baseline, settings=settings)
    assert gains.clean(run, baseline, "mc", "ece") is None
    assert gains.under_shift(run, baseline, "mc", "ece") is None


def test_replicates_of_another_shape_are_refused(tmp_path, pair):
    run = write_run(tmp_path / "byov", curves=False)
    np.savez(run / "evaluation/shift.npz", **{"mc/replicates/ece": np.zeros((11, 5, 40))})
    with pytest.raises(RunError, match=r"resamples of part shift are \(11, 5, 40\)"):
        gains.under_shift(runs.read(run), pair[1], "mc", "ece")
