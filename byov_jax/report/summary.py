"""The summary table: main metrics of every run and mode, with raw pixels and the untrained network."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from byov_jax.evaluation.bootstrap import BETTER
from byov_jax.report import formatting, gains, paper
from byov_jax.report.comparison import Comparison
from byov_jax.report.gains import NO_INTERVAL, Interval
from byov_jax.report.runs import Run, number

COLUMNS = {
    "top1": "top-1 (%)",
    "ece": "ECE (%)",
    "reliability": "reliability (%)",
    "nll": "NLL (nats)",
    "knn": "kNN 20 (%)",
}
CALIBRATION = ("top1", "ece", "reliability", "nll")
FACTOR = {"nll": 1.0}
"""Display unit relative to the unit in the file; 100 where not given."""

PROBED = {"mean": "student mean", "mc": "student MC", "teacher": "teacher"}
REFERENCES = {"raw pixels": "raw pixels", "untrained": "untrained network"}


class Row(NamedTuple):
    """One line of the table.

    Attributes:
      name: the run's name, or that of a reference.
      weights: the prediction mode; empty for a reference.
      values: by column, in the units of `COLUMNS`; the ends are NaN where there is no interval.
      gains: over the baseline, in points, for the NLL in nats; positive is better.
    """

    name: str
    weights: str
    values: dict[str, Interval]
    gains: dict[str, Interval]


def rows(comparison: Comparison) -> list[Row]:
    """Return the rows of the table, runs first."""
    result = []
    for run in comparison.runs:
        for mode in ("mean", "mc", "teacher") if run.traits.bayesian else ("mean", "teacher"):
            with run.parsing("part calibration or probe of its evaluation"):
                values = _values(run, mode)
            if values:
                run_gains = _gains(run, comparison.baseline, mode)
                result.append(Row(run.name, _weights(run, mode), values, run_gains))
    return result + _references(comparison.runs)


def _values(run: Run, mode: str) -> dict[str, Interval]:
    numbers = (run.measured("calibration") or {}).get(mode, {})
    values = {
        name: Interval.from_json(numbers[name], FACTOR.get(name, 100.0))
        for name in CALIBRATION
        if name in numbers
    }
    accuracy = (run.measured("probe") or {}).get("accuracy", {}).get(PROBED[mode], {})
    if "kNN 20" in accuracy:
        values["knn"] = _without_interval(accuracy["kNN 20"])
    return values


def _gains(run: Run, baseline: Run | None, mode: str) -> dict[str, Interval]:
    if mode == "teacher":  # the baseline predicts with its student's mean weights
        return {}
    points = {name: gains.clean(run, baseline, mode, name) for name in CALIBRATION}
    return {
        name: Interval(*(float(end) * FACTOR.get(name, 100.0) / 100.0 for end in gain))
        for name, gain in points.items()
        if gain is not None
    }


def _references(runs: Sequence[Run]) -> list[Row]:
    """Raw pixels and the untrained network, averaged over the runs on the same data that measured them."""
    result = []
    sources = list(dict.fromkeys(run.source for run in runs))
    for source in sources:
        probed = [run for run in runs if run.source == source and run.measured("probe")]
        for key, name in REFERENCES.items():
            values = {}
            for column, probe in (("top1", "linear"), ("knn", "kNN 20")):
                accuracies = []
                for run in probed:
                    with run.parsing("part probe of its evaluation"):
                        by_probe = run.parts["probe"]["accuracy"].get(key, {})
                        accuracies += [float(by_probe[probe])] if probe in by_probe else []
                if accuracies:
                    values[column] = _without_interval(fmean(accuracies))
            if values:
                result.append(Row(f"{name}, {source}" if len(sources) > 1 else name, "", values, {}))
    return result


def _weights(run: Run, mode: str) -> str:
    draws = (run.measured("calibration") or run.measured("probe") or {}).get("draws", "")
    names = {"mean": "mean weights" if run.traits.bayesian else "student", "mc": f"{draws} draws"}
    return names.get(mode, mode)


def _without_interval(value: Any) -> Interval:
    return Interval(100.0 * number(value), math.nan, math.nan)


def best(rows: Sequence[Row], column: str) -> Row | None:
    """Return the row with the best value, if its interval overlaps that of no other row."""
    candidates = [row for row in rows if math.isfinite(row.values.get(column, NO_INTERVAL).low)]
    if len(candidates) < 2 or column not in BETTER:
        return None
    winner = max(candidates, key=lambda row: BETTER[column] * row.values[column].value)
    interval = winner.values[column]
    others = (row.values[column] for row in candidates if row is not winner)
    apart = all(interval.low > other.high or interval.high < other.low for other in others)
    return winner if apart else None


def to_csv(rows: Sequence[Row]) -> str:
    """Format as CSV with unrounded numbers; missing ones are empty."""
    lines = []
    for row in rows:
        line: dict[str, Any] = {"run": row.name, "weights": row.weights}
        for column in COLUMNS:
            for kind, cells in (("", row.values), ("_gain", row.gains)):
                ends = cells.get(column, NO_INTERVAL)
                for end, value in zip(("", "_low", "_high"), ends, strict=True):
                    line[f"{column}{kind}{end}"] = float(value) if math.isfinite(value) else None
        lines.append(line)
    return formatting.csv_text(lines)


def title(comparison: Comparison, rows: Sequence[Row]) -> str:
    """State accuracy and ECE of the first contender."""
    candidates = comparison.contenders or comparison.featured
    run = next((run for run in candidates if run.measured("calibration")), None)
    by_weights = {row.weights: row for row in rows if run and row.name == run.name}
    if run is None or not by_weights:
        return "Accuracy and calibration"
    parts = []
    for weights, row in by_weights.items():
        if weights != "teacher" and {"top1", "ece"} <= set(row.values):
            accuracy, ece = (formatting.fixed(float(row.values[name].value)) for name in ("top1", "ece"))
            parts.append(f"{accuracy}% right, ECE {ece}% ({weights})")
    pixels = (row.values["top1"] for row in rows if row.name == "raw pixels" and "top1" in row.values)
    parts += [f"raw pixels {formatting.fixed(float(value.value))}%" for value in list(pixels)[:1]]
    return f"{run.name}: {'; '.join(parts)}"


def caption(comparison: Comparison) -> list[str]:
    """Say how the numbers were computed, and what the paper reports."""
    sentences = [
        "Brackets are 95% intervals over resamples of the test images. Self-supervised features are "
        "classified by a linear probe, fitted to the frozen features of the mean weights; supervised "
        "runs use their own head. Bold: the best of its column, if its interval overlaps no other.",
    ]
    if comparison.baseline:
        sentences.append(
            f"Second lines: gain over the student of {comparison.baseline.name} on the same images, in "
            "percentage points (NLL: nats), positive is better; coloured where the interval excludes 0."
        )
    sentences += [paper.BEST, paper.DRAWS]
    for run in comparison.contenders:
        numbers = run.measured("calibration")
        if run.is_byov and numbers and "mc over mean" in numbers:
            with run.parsing("part calibration of its evaluation"):
                gain = Interval.from_json(numbers["mc over mean"]["top1"])
            points = f"{formatting.signed(gain.value)} {formatting.interval(gain.low, gain.high, 2)} points"
            verdict = f": {paper.DISAGREES}" if gain.high < 0 else ""
            sentences.append(f"Here draws over mean weights give {run.name} {points} top-1{verdict}.")
            break
    return sentences
