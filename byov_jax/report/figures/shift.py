"""R5: calibration relative to the baseline, on clean images and under shift."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import draw, formatting, gains, paper
from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Figure, Panel, Style
from byov_jax.report.gains import SHIFTS, Interval, UnderShift
from byov_jax.report.runs import Run

METRICS = {"ece": "ECE", "reliability": "Brier reliability"}
MODES = {"mean": (draw.MEAN, "mean weights"), "mc": (draw.DRAWS, "draws of the weights")}
Found = dict[str, tuple[UnderShift, Interval | None]]


def shift(study: Comparison) -> Figure | None:
    """For every contender, ECE and reliability: shift by shift, and against severity."""
    baseline = study.baseline
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    said: list[tuple[Run, dict[str, Found]]] = []
    for run in study.contenders:
        found = {metric: _found(run, baseline, metric) for metric in METRICS}
        if not all(found.values()):
            continue
        for metric, label in METRICS.items():
            panels.append(Panel(f"{label} by shift", _by_shift(found[metric]), run.name, height=3.9))
        for metric, label in METRICS.items():
            panels.append(Panel(f"{label} against severity", _by_severity(found[metric]), run.name))
            rows += _rows(run, metric, found[metric])
        said.append((run, found))
    if not said or baseline is None:
        return None
    first = said[0][0]
    images, draws = (first.count("shift", key) for key in ("images", "draws"))
    clean = ""
    if first.measured("calibration"):
        whole, averaged = (first.count("calibration", key) for key in ("images", "draws"))
        clean = f"; clean is the whole test set, {whole} images, {averaged} draws"
    modes = {mode for _, found in said for mode in found["ece"]}
    return Figure(
        name="shift",
        kind="Distribution shift",
        title=_title(*said[0], baseline),
        caption=(
            f"Percentage points gained over the mean weights of {baseline.name}, positive is better. "
            f"{images} test images under 12 shifts in 5 severities, {draws} "
            f"draws{clean}. By shift: mean over severities; against severity: mean over shifts. Bars and "
            "bands are 95% intervals of the paired difference over resamples of the images.",
            paper.SHIFT,
            *_agreement(*said[0], baseline),
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple((label, look) for mode, (look, label) in MODES.items() if mode in modes),
        columns=2,
    )


def _found(run: Run, baseline: Run | None, metric: str) -> Found:
    found = {}
    for mode in MODES if run.bayesian else ("mean",):
        gain = gains.under_shift(run, baseline, mode, metric)
        if gain is not None:
            found[mode] = (gain, gains.clean(run, baseline, mode, metric))
    return found


def _by_shift(found: Found) -> Any:
    def drawing(axes: Axes) -> None:
        labels = ["clean", *(name.replace("_", " ") for name in SHIFTS)]
        places = np.arange(len(labels))[::-1].astype(float)
        axes.axvline(0, color=draw.FAINT, linewidth=0.9)
        for offset, (mode, (gain, clean)) in zip((0.17, -0.17), found.items(), strict=False):
            look: Style = MODES[mode][0]
            first = clean or Interval(np.nan, np.nan, np.nan)
            value, low, high = (np.append(a, b) for a, b in zip(first, gain.by_shift, strict=True))
            shifted = places + (offset if len(found) > 1 else 0)
            axes.hlines(shifted, low, high, color=look.colour, linewidth=1.3, gid=draw.data(axes))
            draw.line(axes, value, shifted, look, linestyle="", markersize=4)
        draw.scale(axes, "x")
        axes.set_yticks(places, labels)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.axhline(len(labels) - 1.5, color=draw.GRID, linewidth=0.9)
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.set_xlabel("gain (points, positive is better)")

    return drawing


def _by_severity(found: Found) -> Any:
    def drawing(axes: Axes) -> None:
        axes.axhline(0, color=draw.FAINT, linewidth=0.9)
        for mode, (gain, clean) in found.items():
            look: Style = MODES[mode][0]
            first = clean or Interval(np.nan, np.nan, np.nan)
            value, low, high = (np.append(a, b) for a, b in zip(first, gain.by_severity, strict=True))
            draw.band(axes, np.arange(6), low, high, look)
            draw.line(axes, np.arange(6), value, look)
        axes.set_xticks(range(6), ["clean", *gains.SEVERITIES])
        draw.scale(axes, "y")
        axes.set_xlabel("severity")
        axes.set_ylabel("gain (points)")

    return drawing


def _rows(run: Run, metric: str, found: Found) -> list[dict[str, Any]]:
    rows = []
    for mode, (gain, clean) in found.items():
        start = {"run": run.name, "metric": metric, "weights": MODES[mode][1]}
        if clean:
            rows.append(start | {"shift": "clean"} | _plain(clean))
        for names, interval in (
            (SHIFTS, gain.by_shift),
            ([f"all, severity {s}" for s in gains.SEVERITIES], gain.by_severity),
            (["all"], Interval(*(np.atleast_1d(end) for end in gain.overall))),
        ):
            for name, *ends in zip(names, *(np.asarray(end) for end in interval), strict=True):
                rows.append(start | {"shift": name} | _plain(Interval(*ends)))
    return rows


def _plain(interval: Interval) -> dict[str, float]:
    return {key: float(value) for key, value in interval._asdict().items()}


def _title(run: Run, found: Mapping[str, Found], baseline: Run) -> str:
    mode = "mc" if "mc" in found["ece"] else "mean"
    gain = found["ece"][mode][0]
    better, surely = (int(np.sum(np.asarray(ends) > 0)) for ends in (gain.by_shift.value, gain.by_shift.low))
    who = f"{run.name} with draws" if mode == "mc" else run.name
    ends = formatting.interval(float(gain.overall.low), float(gain.overall.high), 2)
    return (
        f"Under shift the ECE of {who} gains {formatting.signed(float(gain.overall.value))} {ends} points on "
        f"{baseline.name}: better under {better} of {len(SHIFTS)} shifts, "
        f"beyond chance under {surely or 'none'}"
    )


def _agreement(run: Run, found: Mapping[str, Found], baseline: Run) -> tuple[str, ...]:
    if (run.method, baseline.method) != paper.COMPARED:
        return ()
    mode = "mc" if "mc" in found["ece"] else "mean"
    said = []
    for metric, label in METRICS.items():
        clean = found[metric][mode][1]
        if clean:
            ends = formatting.interval(float(clean.low), float(clean.high), 2)
            unlike = f" ({paper.DISAGREES})" if clean.high < 0 else ""
            said.append(f"{formatting.signed(float(clean.value))} {ends} points {label}{unlike}")
    return (f"Here, on clean images, {run.name} has {formatting.listing(said)}.",) if said else ()
