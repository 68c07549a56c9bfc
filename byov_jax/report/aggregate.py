"""Aggregate runs that differ only in their seed: means and intervals over seeds, as Markdown, CSV, pivot."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from byov_jax.evaluation.bootstrap import BETTER
from byov_jax.report import formatting, labels, paper
from byov_jax.report.runs import Run, first_byol, number

METRICS = {
    "top1": "top-1",
    "top5": "top-5",
    "ece": "ECE",
    "reliability": "reliability",
    "resolution": "resolution",
}
"""The metrics of the paper's table, all in percent, and their labels."""

MODES = {"mean": "mean weights", "mc": "draws", "teacher": "teacher"}
"""The weights that predictions are made with, and their labels."""

LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean over seeds.

    Attributes:
      mean: mean of the values.
      half_width: half the width of the Student t interval; None for a single seed.
      seeds: number of seeds.
    """

    mean: float
    half_width: float | None
    seeds: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - (math.inf if self.half_width is None else self.half_width)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + (math.inf if self.half_width is None else self.half_width)

    def text(self, signed: bool = False) -> str:
        """Format as `71.23 ± 0.40`."""
        mean = formatting.signed(self.mean) if signed else formatting.fixed(self.mean, 2)
        return mean if self.half_width is None else f"{mean} ± {formatting.fixed(self.half_width, 2)}"


class Row(NamedTuple):
    """One setting in one prediction mode.

    Attributes:
      method: "BYOV".
      prior: "N(0, I)", empty without a posterior.
      where: which parameters are Bayesian.
      beta: "0→0.3".
      other: other keys that distinguish the setting from those of the same method.
      mode: a key of `MODES`.
      seeds: the seeds.
      metrics: by name, in percent.
      gains: over the baseline's mean weights, paired by the seeds that both have; in percentage points,
        positive is better.
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


class Pivot(NamedTuple):
    """Settings by beta, in one prediction mode.

    Attributes:
      betas: the columns.
      lines: name of the setting and its rows by beta; the beta is empty without a posterior.
    """

    betas: list[str]
    lines: list[tuple[str, dict[str, Row]]]


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the mean and the half-width `t s / sqrt(n)` of its Student t interval."""
    count = len(values)
    mean = fmean(values)
    if count == 1:
        return Estimate(mean, None, 1)
    from scipy import stats  # takes a second to import

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = float(stats.t.ppf((1 + level) / 2, count - 1))
    return Estimate(mean, quantile * deviation / math.sqrt(count), count)


def over_seeds(runs: Sequence[Run], baseline: Run | None = None) -> list[Row]:
    """Return one row for every setting and measured mode, in order of appearance.

    Args:
      runs: of any methods; a config that appears twice counts once.
      baseline: differences refer to its setting; the first BYOL run's if None.
    """
    baseline = baseline or first_byol(runs)
    settings: dict[str, dict[int, Run]] = {}
    for run in (*runs, *([baseline] if baseline else [])):
        if run.measured("calibration"):
            settings.setdefault(labels.setting(run), {}).setdefault(run.seed, run)
    reference = settings.get(labels.setting(baseline), {}) if baseline else {}
    rows = []
    for by_seed in settings.values():
        for mode in _modes(by_seed):
            chosen = {seed: run for seed, run in sorted(by_seed.items()) if mode in run.parts["calibration"]}
            is_reference = by_seed is reference and mode == "mean"
            rows.append(_row(chosen, mode, {} if is_reference else reference, runs))
    return rows


def _modes(by_seed: dict[int, Run]) -> list[str]:
    run = next(iter(by_seed.values()))
    modes = MODES if run.traits.bayesian else ("mean", "teacher")  # without a posterior, mc equals mean
    return [mode for mode in modes if any(mode in r.parts["calibration"] for r in by_seed.values())]


def _row(by_seed: dict[int, Run], mode: str, reference: dict[int, Run], runs: Sequence[Run]) -> Row:
    first = next(iter(by_seed.values()))
    common = [seed for seed in by_seed if seed in reference]
    metrics, gains = {}, {}
    for name in METRICS:
        values = {seed: _percent(run, mode, name) for seed, run in by_seed.items()}
        metrics[name] = estimate(list(values.values()))
        if common and mode != "teacher":
            differences = [values[seed] - _percent(reference[seed], "mean", name) for seed in common]
            gains[name] = estimate([BETTER[name] * difference for difference in differences])
    return Row(
        method=labels.method(first),
        prior=labels.prior(first),
        where=str(first.config["where"]) if first.traits.bayesian else "",
        beta=labels.beta(first),
        other=labels.others(first, runs),
        mode=mode,
        seeds=tuple(by_seed),
        metrics=metrics,
        gains=gains,
    )


def _percent(run: Run, mode: str, name: str) -> float:
    with run.parsing("part calibration of its evaluation"):
        return 100.0 * number(run.parts["calibration"][mode][name]["value"])


def to_markdown(rows: Sequence[Row]) -> str:
    """Format as a Markdown table: value ± half-width in percent, followed by the gain in points."""
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


def to_csv(rows: Sequence[Row]) -> str:
    """Format as CSV with unrounded numbers; missing ones are empty."""
    return formatting.csv_text(
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
            f"{name}{kind}{suffix}": getattr(estimates[name], field) if name in estimates else None
            for name in METRICS
            for kind, estimates in (("", row.metrics), ("_gain", row.gains))
            for suffix, field in (("", "mean"), ("_half_width", "half_width"))
        }
        for row in rows
    )


def pivot(rows: Sequence[Row], mode: str) -> Pivot:
    """Arrange the rows of one mode by setting and beta; a method without a posterior has its mean weights."""
    several_where = len({row.where for row in rows if row.where}) > 1
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if row.mode == (mode if row.beta else "mean"):
            lines.setdefault((row.method, row.prior, row.where, row.other), {})[row.beta] = row
    named = [
        (" · ".join(filter(None, (method, prior, where if several_where else "", other))), by_beta)
        for (method, prior, where, other), by_beta in lines.items()
    ]
    return Pivot(list(dict.fromkeys(row.beta for row in rows if row.beta)), named)


def title(rows: Sequence[Row]) -> str:
    """Name the setting with the lowest ECE, of draws if there are any."""
    candidates = [row for row in rows if row.mode == "mc"] or list(rows)
    row = min(candidates, key=lambda row: row.metrics["ece"].mean)
    name = " · ".join(filter(None, (row.method, row.prior, f"β {row.beta}" if row.beta else "", row.other)))
    text = f"Lowest ECE among {len(candidates)} settings: {name}, {row.metrics['ece'].text()}%"
    gain = row.gains.get("ece")
    return f"{text}, {gain.text(signed=True)} points gained" if gain else text


def caption(rows: Sequence[Row]) -> list[str]:
    """Say how the numbers were computed, and what the paper reports."""
    counts = sorted({len(row.seeds) for row in rows})
    seeds = formatting.plural(counts[0], "seed") if len(counts) == 1 else "n seeds"
    sentences = [
        f"Mean over {seeds} ± half-width of the 95% interval by Student's t; a single seed has none. "
        "Second lines: gain over the student of BYOL with the same seed, in percentage points, positive "
        "is better; blue where the interval is above 0, red where it is below.",
        paper.BEST,
    ]
    if len({row.where for row in rows if row.where}) > 1:
        sentences.append(paper.PARTIAL)
    return sentences
