"""R5: calibration gains over the baseline, on clean images and under distribution shift."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.images import shifts
from byov_jax.report import formatting, gains, paper, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.gains import NO_INTERVAL, SEVERITIES, GainsUnderShift, Interval
from byov_jax.report.plotting import Draw, Figure, Panel
from byov_jax.report.runs import Run

METRICS = {"ece": "ECE", "reliability": "Brier reliability"}
MODES = {"mean": (plotting.MEAN, "mean weights"), "mc": (plotting.DRAWS, "draws of the weights")}
ByMode = dict[str, tuple[GainsUnderShift, Interval | None]]
"""Gains under shift and on clean images, by prediction mode."""


def shift(comparison: Comparison) -> Figure | None:
    """For every contender, ECE and reliability: shift by shift, and against severity."""
    baseline = comparison.baseline
    if baseline is None:
        return None
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    shown: list[tuple[Run, dict[str, ByMode]]] = []
    for run in comparison.contenders:
        by_metric = {metric: _by_mode(run, baseline, metric) for metric in METRICS}
        if not all(by_metric.values()):
            continue
        for metric, label in METRICS.items():
            panels.append(Panel(f"{label} by shift", _by_shift(by_metric[metric]), run.name, height=3.9))
        for metric, label in METRICS.items():
            panels.append(Panel(f"{label} against severity", _by_severity(by_metric[metric]), run.name))
            rows += _rows(run, metric, by_metric[metric])
        shown.append((run, by_metric))
    if not shown:
        return None
    first = shown[0][0]
    images, draws = (first.count("shift", key) for key in ("images", "draws"))
    clean = ""
    if first.measured("calibration"):
        clean_images, clean_draws = (first.count("calibration", key) for key in ("images", "draws"))
        clean = f"; clean is the whole test set, {clean_images} images, {clean_draws} draws"
    modes = {mode for _, by_metric in shown for mode in by_metric["ece"]}
    return Figure(
        name="shift",
        kind="Distribution shift",
        title=_title(*shown[0], baseline),
        caption=(
            f"Percentage points gained over the mean weights of {baseline.name}, positive is better. "
            f"{images} test images under 12 shifts in 5 severities, {draws} "
            f"draws{clean}. By shift: mean over severities; against severity: mean over shifts. Bars and "
            "bands are 95% intervals of the paired difference over resamples of the images.",
            paper.SHIFT,
            *_agreement(*shown[0], baseline),
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple((label, style) for mode, (style, label) in MODES.items() if mode in modes),
        columns=2,
    )


def _by_mode(run: Run, baseline: Run, metric: str) -> ByMode:
    by_mode = {}
    for mode in MODES if run.traits.bayesian else ("mean",):
        gain = gains.under_shift(run, baseline, mode, metric)
        if gain is not None:
            by_mode[mode] = (gain, gains.clean(run, baseline, mode, metric))
    return by_mode


def _by_shift(by_mode: ByMode) -> Draw:
    def draw(axes: Axes) -> None:
        labels = ["clean", *(name.replace("_", " ") for name in shifts.NAMES)]
        y = np.arange(len(labels))[::-1].astype(float)
        axes.axvline(0, color=plotting.FAINT, linewidth=0.9)
        for offset, (mode, (gain, clean)) in zip((0.17, -0.17), by_mode.items(), strict=False):
            style = MODES[mode][0]
            value, low, high = _after_clean(clean, gain.by_shift)
            shifted = y + (offset if len(by_mode) > 1 else 0)
            axes.hlines(shifted, low, high, color=style.colour, linewidth=1.3, gid=plotting.data_id(axes))
            plotting.line(axes, value, shifted, style, linestyle="", markersize=4)
        plotting.scale(axes, "x")
        axes.set_yticks(y, labels)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.axhline(len(labels) - 1.5, color=plotting.GRID, linewidth=0.9)
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.set_xlabel("gain (points, positive is better)")

    return draw


def _by_severity(by_mode: ByMode) -> Draw:
    def draw(axes: Axes) -> None:
        axes.axhline(0, color=plotting.FAINT, linewidth=0.9)
        for mode, (gain, clean) in by_mode.items():
            style = MODES[mode][0]
            value, low, high = _after_clean(clean, gain.by_severity)
            plotting.band(axes, np.arange(6), low, high, style)
            plotting.line(axes, np.arange(6), value, style)
        axes.set_xticks(range(6), ["clean", *SEVERITIES])
        plotting.scale(axes, "y")
        axes.set_xlabel("severity")
        axes.set_ylabel("gain (points)")

    return draw


def _after_clean(clean: Interval | None, gain: Interval) -> list[np.ndarray]:
    """Return value, low and high with those of clean images as the first element, NaN if there are none."""
    return [np.append(a, b) for a, b in zip(clean or NO_INTERVAL, gain, strict=True)]


def _rows(run: Run, metric: str, by_mode: ByMode) -> list[dict[str, Any]]:
    rows = []
    for mode, (gain, clean) in by_mode.items():
        start = {"run": run.name, "metric": metric, "weights": MODES[mode][1]}
        for names, interval in (
            *([(["clean"], clean)] if clean else []),
            (shifts.NAMES, gain.by_shift),
            ([f"all, severity {s}" for s in SEVERITIES], gain.by_severity),
            (["all"], gain.overall),
        ):
            for name, *ends in zip(names, *map(np.atleast_1d, interval), strict=True):
                values = dict(zip(Interval._fields, map(float, ends), strict=True))
                rows.append(start | {"shift": name} | values)
    return rows


def _title(run: Run, by_metric: Mapping[str, ByMode], baseline: Run) -> str:
    mode = "mc" if "mc" in by_metric["ece"] else "mean"
    gain = by_metric["ece"][mode][0]
    better, significantly = (
        int(np.sum(np.asarray(ends) > 0)) for ends in (gain.by_shift.value, gain.by_shift.low)
    )
    subject = f"{run.name} with draws" if mode == "mc" else run.name
    ends = formatting.interval(float(gain.overall.low), float(gain.overall.high), 2)
    value = formatting.signed(float(gain.overall.value))
    return (
        f"Under shift the ECE of {subject} gains {value} {ends} points on {baseline.name}: "
        f"better under {better} of {len(shifts.NAMES)} shifts, significantly under {significantly or 'none'}"
    )


def _agreement(run: Run, by_metric: Mapping[str, ByMode], baseline: Run) -> tuple[str, ...]:
    if not paper.compares(run, baseline):
        return ()
    mode = "mc" if "mc" in by_metric["ece"] else "mean"
    parts = []
    for metric, label in METRICS.items():
        clean = by_metric[metric][mode][1]
        if clean:
            ends = formatting.interval(float(clean.low), float(clean.high), 2)
            verdict = f" ({paper.DISAGREES})" if clean.high < 0 else ""
            parts.append(f"{formatting.signed(float(clean.value))} {ends} points {label}{verdict}")
    return (f"Here, on clean images, {run.name} has {formatting.listing(parts)}.",) if parts else ()
