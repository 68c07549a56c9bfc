"""Runs that differ in their seed alone as one row: means and intervals over seeds, as Markdown and CSV."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from byov_jax.report import formatting, labels, student_t
from byov_jax.report.runs import Run, number

METRICS = {
    "top1": "top-1",
    "top5": "top-5",
    "ece": "ECE",
    "reliability": "reliability",
    "resolution": "resolution",
}
"""The metrics of the paper's table, all in percent, and what they are called."""

BETTER = {"top1": 1, "top5": 1, "ece": -1, "reliability": -1, "resolution": 1, "nll": -1}
"""1 where more is better, -1 where less is."""

MODES = {"mean": "mean weights", "mc": "draws", "teacher": "teacher"}
LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean over seeds.

    Attributes:
      mean: of the values.
      half_width: of the interval by Student's t; None for a single seed, which says nothing of the others.
      seeds: how many.
    """

    mean: float
    half_width: float | None
    seeds: int

    def text(self, signed: bool = False) -> str:
        """As in `71.23 ± 0.40`."""
        mean = formatting.signed(self.mean) if signed else formatting.fixed(self.mean, 2)
        return mean if self.half_width is None else f"{mean} ± {formatting.fixed(self.half_width, 2)}"


class Row(NamedTuple):
    """One setting in one mode of prediction.

    Attributes:
      method: "BYOV".
      prior: "N(0, I)", empty without a posterior.
      where: which parameters are Bayesian.
      beta: "0→0.3".
      other: what else sets the setting apart from others of its method.
      mode: a key of `MODES`.
      seeds: the seeds.
      metrics: by name, in percent.
      gains: over the baseline's mean weights, seed by seed, in percentage points, positive is better; only
        seeds that both have count.
    """

    method: str
    prior: str
    where: str
    beta: str
    other: str
    mode: str
    seeds: tuple[int, ...]
    metrics: dict[str, Estimate]
    gains: dict[str, Estimate]


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean and half-width `t s / sqrt(n)` of the interval that contains the true mean with `level`."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Estimate(mean, student_t.quantile(level, count - 1) * deviation / math.sqrt(count), count)


def groups(runs: Sequence[Run], baseline: Run | None = None) -> list[Row]:
    """One row for every setting and mode that was measured, in order of appearance.

    Args:
      runs: of any methods; the same config twice counts once.
      baseline: differences are taken to its setting; the first BYOL run's if None.
    """
    baseline = baseline or next((run for run in runs if run.method == "byol"), None)
    settings: dict[str, dict[int, Run]] = {}
    for run in (*runs, *([baseline] if baseline else [])):
        if run.measured("calibration"):
            settings.setdefault(labels.setting(run), {}).setdefault(run.seed, run)
    against = settings.get(labels.setting(baseline), {}) if baseline else {}
    rows = []
    for seeds in settings.values():
        for mode in _modes(seeds):
            having = {seed: run for seed, run in sorted(seeds.items()) if mode in run.parts["calibration"]}
            rows.append(_row(having, mode, {} if seeds is against and mode == "mean" else against, runs))
    return rows


def _modes(seeds: dict[int, Run]) -> list[str]:
    run = next(iter(seeds.values()))
    modes = MODES if run.bayesian else ("mean", "teacher")  # without a posterior draws are the mean again
    return [mode for mode in modes if any(mode in r.parts["calibration"] for r in seeds.values())]


def _row(seeds: dict[int, Run], mode: str, against: dict[int, Run], runs: Sequence[Run]) -> Row:
    first = next(iter(seeds.values()))
    common = [seed for seed in seeds if seed in against]
    metrics, gains = {}, {}
    for name in METRICS:
        values = {seed: _percent(run, mode, name) for seed, run in seeds.items()}
        metrics[name] = estimate(list(values.values()))
        if common and mode != "teacher":
            differences = [values[seed] - _percent(against[seed], "mean", name) for seed in common]
            gains[name] = estimate([BETTER[name] * difference for difference in differences])
    return Row(
        method=labels.method(first),
        prior=labels.prior(first),
        where=str(first.config["where"]) if first.bayesian else "",
        beta=labels.beta(first),
        other=labels.others(first, runs),
        mode=mode,
        seeds=tuple(seeds),
        metrics=metrics,
        gains=gains,
    )


def _percent(run: Run, mode: str, name: str) -> float:
    with run.reading("part calibration of its evaluation"):
        return 100.0 * number(run.parts["calibration"][mode][name]["value"])


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table: value ± half-width in percent, and below it the gain in points."""
    header = ["method", "prior", "where", "beta", "weights", "seeds"]
    header += [f"{name} (%){gain}" for name in METRICS.values() for gain in ("", " gain")]
    lines = [header, ["---"] * len(header)]
    for row in rows:
        method = f"{row.method}, {row.other}" if row.other else row.method
        cells = [method, row.prior, row.where, row.beta, MODES[row.mode], str(len(row.seeds))]
        for name in METRICS:
            gain = row.gains[name].text(signed=True) if name in row.gains else ""
            cells += [row.metrics[name].text(), gain]
        lines.append([cell.replace("|", "\\|") for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def comma_separated(rows: Sequence[Row]) -> str:
    """The rows as CSV text: every number in full, empty where there is none."""
    return table(
        {
            "method": row.method,
            "prior": row.prior,
            "where": row.where,
            "beta": row.beta,
            "other": row.other,
            "weights": MODES[row.mode],
            "seeds": " ".join(map(str, row.seeds)),
        }
        | {
            f"{name}{kind}{field}": getattr(found[name], attribute) if name in found else None
            for name in METRICS
            for kind, found in (("", row.metrics), ("_gain", row.gains))
            for field, attribute in (("", "mean"), ("_half_width", "half_width"))
        }
        for row in rows
    )


def table(rows: Any) -> str:
    """Dicts as CSV text; the columns are those of all rows, None is empty."""
    rows = list(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
