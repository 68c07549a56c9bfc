"""The main numbers of every run and mode, beside raw pixels and the untrained network."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from byov_jax.report import formatting, gains, paper
from byov_jax.report.comparison import Comparison
from byov_jax.report.gains import Interval
from byov_jax.report.groups import BETTER
from byov_jax.report.runs import Run, number

COLUMNS = {
    "top1": "top-1 (%)",
    "ece": "ECE (%)",
    "reliability": "reliability (%)",
    "nll": "NLL (nats)",
    "knn": "kNN 20 (%)",
}
UNIT = {"nll": 1.0}
"""What values are multiplied with to be shown; 100 where it is not said."""

PROBED = {"mean": "student mean", "mc": "student MC", "teacher": "teacher"}
REFERENCES = {"raw pixels": "raw pixels", "untrained": "untrained network"}


class Row(NamedTuple):
    """One line of the table.

    Attributes:
      name: of the run, or of what it is compared with.
      weights: the mode of prediction.
      values: by column, in the units of `COLUMNS`; ends are NaN where there is no interval.
      gains: over the baseline, in points, for the NLL in nats; positive is better.
    """

    name: str
    weights: str
    values: dict[str, Interval]
    gains: dict[str, Interval]


def rows(study: Comparison) -> list[Row]:
    """The table, runs first."""
    found = []
    for run in study.runs:
        for mode in ("mean", "mc", "teacher") if run.bayesian else ("mean", "teacher"):
            with run.reading("part calibration or probe of its evaluation"):
                values = _values(run, mode)
            if values:
                found.append(Row(run.name, _weights(run, mode), values, _gains(run, study.baseline, mode)))
    return found + _references(study.runs)


def _values(run: Run, mode: str) -> dict[str, Interval]:
    values = {}
    numbers = (run.measured("calibration") or {}).get(mode, {})
    for name in ("top1", "ece", "reliability", "nll"):
        if name in numbers:
            ends = (number(numbers[name][key]) for key in Interval._fields)
            values[name] = Interval(*(UNIT.get(name, 100.0) * end for end in ends))
    accuracy = (run.measured("probe") or {}).get("accuracy", {}).get(PROBED[mode], {})
    if "kNN 20" in accuracy:
        values["knn"] = _alone(accuracy["kNN 20"])
    return values


def _gains(run: Run, baseline: Run | None, mode: str) -> dict[str, Interval]:
    if mode == "teacher":  # the baseline is taken at its student's mean weights
        return {}
    found = {name: gains.clean(run, baseline, mode, name) for name in ("top1", "ece", "reliability", "nll")}
    return {
        name: Interval(*(float(end) * UNIT.get(name, 100.0) / 100.0 for end in gain))
        for name, gain in found.items()
        if gain is not None
    }


def _references(runs: Sequence[Run]) -> list[Row]:
    """Raw pixels and the untrained network, averaged over the runs on the same data that measured them."""
    found = []
    for source in dict.fromkeys(str(run.config["data"]["source"]) for run in runs):
        on_it = [run for run in runs if str(run.config["data"]["source"]) == source and run.measured("probe")]
        for key, name in REFERENCES.items():
            values = {}
            for column, probe in (("top1", "linear"), ("knn", "kNN 20")):
                measured = []
                for run in on_it:
                    with run.reading("part probe of its evaluation"):
                        measured += [
                            float(v)
                            for k, v in run.parts["probe"]["accuracy"].get(key, {}).items()
                            if k == probe
                        ]
                if measured:
                    values[column] = _alone(math.fsum(measured) / len(measured))
            if values:
                several = len({str(run.config["data"]["source"]) for run in runs}) > 1
                found.append(Row(f"{name}, {source}" if several else name, "", values, {}))
    return found


def _weights(run: Run, mode: str) -> str:
    draws = (run.measured("calibration") or run.measured("probe") or {}).get("draws", "")
    return {"mean": "mean weights" if run.bayesian else "student", "mc": f"{draws} draws"}.get(mode, mode)


def _alone(value: Any) -> Interval:
    return Interval(100.0 * number(value), math.nan, math.nan)


def best(found: Sequence[Row], column: str) -> Row | None:
    """The row with the best value, if its interval overlaps that of no other row."""
    having = [row for row in found if column in row.values and math.isfinite(row.values[column].low)]
    if len(having) < 2 or column not in BETTER:
        return None
    winner = max(having, key=lambda row: BETTER[column] * row.values[column].value)
    mine = winner.values[column]
    others = (row.values[column] for row in having if row is not winner)
    return winner if all(mine.low > other.high or mine.high < other.low for other in others) else None


def flat(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows for CSV."""
    table = []
    for row in found:
        line: dict[str, Any] = {"run": row.name, "weights": row.weights}
        for column in COLUMNS:
            for kind, cells in (("", row.values), ("_gain", row.gains)):
                ends = cells.get(column, Interval(math.nan, math.nan, math.nan))
                for end, value in zip(("", "_low", "_high"), ends, strict=True):
                    line[f"{column}{kind}{end}"] = float(value) if math.isfinite(value) else None
        table.append(line)
    return table


def title(study: Comparison, found: Sequence[Row]) -> str:
    """What the table shows of the first run that the report is about."""
    run = next((run for run in study.contenders or study.featured if run.measured("calibration")), None)
    mine = {row.weights: row for row in found if run and row.name == run.name}
    if run is None or not mine:
        return "What the features are worth"
    parts = []
    for weights, row in mine.items():
        if weights != "teacher" and {"top1", "ece"} <= set(row.values):
            accuracy, ece = (formatting.fixed(float(row.values[name].value)) for name in ("top1", "ece"))
            parts.append(f"{accuracy}% right, ECE {ece}% ({weights})")
    pixels = next(
        (row for row in found if row.name == REFERENCES["raw pixels"] and "top1" in row.values), None
    )
    beside = f"; raw pixels {formatting.fixed(float(pixels.values['top1'].value))}%" if pixels else ""
    return f"{run.name}: {'; '.join(parts)}{beside}"


def caption(study: Comparison) -> list[str]:
    """How the numbers were computed, and what the paper saw."""
    said = [
        "Brackets are 95% intervals over resamples of the test images. Self-supervised features are "
        "classified by a linear probe, fitted to the frozen features of the mean weights; supervised "
        "runs use their own head. Bold: the best of its column, if its interval overlaps no other.",
    ]
    if study.baseline:
        said.append(
            f"Second lines: gain over the student of {study.baseline.name} on the same images, in "
            "percentage points (NLL: nats), positive is better; coloured where the interval excludes 0."
        )
    said += [paper.BEST, paper.DRAWS]
    for run in study.contenders:
        numbers = run.measured("calibration")
        if run.method == "byov" and numbers and "mc over mean" in numbers:
            with run.reading("part calibration of its evaluation"):
                gain = Interval(*(number(numbers["mc over mean"]["top1"][key]) for key in Interval._fields))
            value, ends = formatting.signed(gain.value), formatting.interval(gain.low, gain.high, 2)
            unlike = f": {paper.DISAGREES}" if gain.high < 0 else ""
            said.append(f"Here draws over mean weights give {run.name} {value} {ends} points top-1{unlike}.")
            break
    return said
