"""Means and intervals over seeds: closed forms, pairing by seed, and tables that can be read back."""

import csv
import io
import math

import numpy as np
import pytest
from report.synthetic import write_run
from scipy import stats

from byov_jax.report import aggregate, runs
from byov_jax.report.aggregate import Estimate


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """BYOV with two betas and three seeds, BYOL with two of the seeds, and one run that was not measured."""
    root = tmp_path_factory.mktemp("sweep")
    for seed in (0, 1, 2):
        for beta in (0.3, 1.0):
            write_run(root / f"byov_{beta}_{seed}", seed=seed, beta_end=beta, curves=False)
    for seed in (0, 1):
        write_run(root / f"byol_{seed}", "byol", seed=seed, curves=False)
    write_run(root / "byov_unmeasured", seed=3, curves=False, parts=[])
    return [runs.read(path) for path in runs.find(root)]


def values(runs, method, beta, mode, metric):
    return {
        run.seed: 100 * run.parts["calibration"][mode][metric]["value"]
        for run in runs
        if run.method == method and "calibration" in run.parts and beta in (None, run.config["beta_end"])
    }


def test_an_estimate_is_the_interval_of_the_t_test():
    sample = [71.2, 70.1, 72.9, 71.0]
    found = aggregate.estimate(sample)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(sample), scale=stats.sem(sample))
    assert found.mean - found.half_width == pytest.approx(low)
    assert found.mean + found.half_width == pytest.approx(high)
    assert found.seeds == 4


def test_one_seed_has_no_interval():
    assert aggregate.estimate([3.0]) == Estimate(3.0, None, 1)
    assert aggregate.estimate([3.0]).text() == "3.00"
    assert aggregate.estimate([1.0, 1.0]).text(signed=True) == "+1.00 ± 0.00"


def test_rows_are_settings_and_modes(sweep):
    rows = aggregate.over_seeds(sweep)
    shown = [(row.method, row.beta, row.mode, row.seeds) for row in rows]
    both = [("mean", (0, 1, 2)), ("mc", (0, 1, 2)), ("teacher", (0, 1, 2))]
    assert shown == [
        ("BYOL", "", "mean", (0, 1)),
        ("BYOL", "", "teacher", (0, 1)),
        *(("BYOV", "0→0.3", mode, seeds) for mode, seeds in both),
        *(("BYOV", "0→1", mode, seeds) for mode, seeds in both),
    ]


@pytest.mark.parametrize(
    ("metric", "sign"), [("top1", 1), ("ece", -1), ("reliability", -1), ("resolution", 1)]
)
def test_gains_are_paired_by_seed_and_positive_is_better(sweep, metric, sign):
    row = next(row for row in aggregate.over_seeds(sweep) if (row.beta, row.mode) == ("0→1", "mc"))
    mine, theirs = values(sweep, "byov", 1.0, "mc", metric), values(sweep, "byol", None, "mean", metric)
    assert row.metrics[metric].mean == pytest.approx(np.mean(list(mine.values())))
    differences = [sign * (mine[seed] - theirs[seed]) for seed in (0, 1)]
    assert row.gains[metric].mean == pytest.approx(np.mean(differences))
    expected = stats.t.ppf(0.975, 1) * np.std(differences, ddof=1) / math.sqrt(2)
    assert row.gains[metric].half_width == pytest.approx(expected)


def test_the_baseline_and_teachers_gain_nothing(sweep):
    for row in aggregate.over_seeds(sweep):
        assert bool(row.gains) == (row.method == "BYOV" and row.mode != "teacher")


def test_the_same_run_twice_counts_once(sweep):
    assert aggregate.over_seeds([*sweep, *sweep]) == aggregate.over_seeds(sweep)


def test_runs_that_differ_in_more_than_the_seed_are_apart(tmp_path):
    found = [
        runs.read(write_run(tmp_path / str(steps), steps=steps, seed=seed, curves=False))
        for seed, steps in ((0, 20), (1, 40))
    ]
    assert [(row.other, row.seeds) for row in aggregate.over_seeds(found) if row.mode == "mc"] == [
        ("steps=20", (0,)),
        ("steps=40", (1,)),
    ]


def test_csv_comes_back_as_it_was(sweep):
    rows = aggregate.over_seeds(sweep)
    lines = list(csv.DictReader(io.StringIO(aggregate.to_csv(rows))))
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert [line["method"], line["beta"], line["weights"]] == [
            row.method,
            row.beta,
            aggregate.MODES[row.mode],
        ]
        for name in aggregate.METRICS:
            assert float(line[name]) == row.metrics[name].mean
            assert float(line[f"{name}_half_width"]) == row.metrics[name].half_width
            assert line[f"{name}_gain"] == (str(row.gains[name].mean) if row.gains else "")


def test_markdown_is_a_table(sweep):
    rows = aggregate.over_seeds(sweep)
    lines = aggregate.to_markdown(rows).splitlines()
    assert len(lines) == len(rows) + 2
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| BYOL |  |  |  | mean weights | 2 | ")
    assert rows[3].gains["ece"].text(signed=True) in lines[5]


def test_a_pipe_does_not_break_markdown(tmp_path):
    found = runs.read(write_run(tmp_path / "run", where="qkv|out", curves=False))
    lines = aggregate.to_markdown(aggregate.over_seeds([found])).splitlines()
    assert "qkv\\|out" in lines[2]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
