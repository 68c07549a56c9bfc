"""Reliability diagrams: accuracy against confidence."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import formatting, gains, paper, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.plotting import Draw, Figure, Panel, Style
from byov_jax.report.runs import Run, number

FIELDS = ("samples", "confidence", "accuracy")
Bins = dict[str, np.ndarray]


def reliability(comparison: Comparison) -> Figure | None:
    """Accuracy against confidence, and the number of images in each bin."""
    baseline = comparison.baseline
    baseline_bins = bins(baseline, "mean") if baseline else None
    panels, rows, shown = [], [], []
    legend: dict[str, Style] = {}
    for run in comparison.contenders or comparison.featured:
        modes = {"mean": (plotting.MEAN, "mean weights")}
        if run.traits.bayesian:
            modes["mc"] = (plotting.DRAWS, "draws of the weights")
        curves: dict[str, tuple[Bins, Style]] = {}
        for mode, (style, label) in modes.items():
            run_bins = bins(run, mode)
            if run_bins:
                curves[label] = (run_bins, style)
                rows += _rows(run, label, run_bins)
        if not curves:
            continue
        if baseline_bins and baseline and baseline.path != run.path:
            curves[f"{baseline.name}, mean weights"] = (baseline_bins, plotting.BASELINE)
        legend |= {label: style for label, (_, style) in curves.items()}
        panels.append(Panel("Accuracy against confidence", _diagram(curves), run.name))
        panels.append(Panel("Images per bin", _counts(curves), run.name))
        shown.append(run)
    if not panels:
        return None
    if baseline_bins and baseline and baseline not in shown:
        rows += _rows(baseline, "mean weights", baseline_bins)
    images, draws = (shown[0].count("calibration", key) for key in ("images", "draws"))
    return Figure(
        name="reliability",
        kind="Calibration",
        title=_title(shown[0], baseline if baseline not in shown else None),
        caption=(
            f"{images} test images in 15 bins of equal width by the probability of the "
            "predicted class; the area of a point grows with the number of its images. On the dashed "
            "diagonal confidence equals accuracy; below it the model is overconfident, above it "
            "underconfident.",
            f"The probabilities of {draws} draws are averaged. Self-supervised features are "
            "classified by a linear probe that was fitted to those of the mean weights.",
            paper.RELIABILITY,
            *_agreement(shown[0], baseline),
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple(legend.items()),
        columns=2,
    )


def bins(run: Run, mode: str) -> Bins | None:
    """Return samples, confidence and accuracy of the bins that hold images."""
    if not run.measured("calibration"):
        return None
    prefix = f"{mode}/bins/"
    arrays = {name.removeprefix(prefix): array for name, array in run.arrays("calibration", prefix).items()}
    if not set(FIELDS) <= set(arrays):
        return None
    with run.parsing("evaluation/calibration.npz"):
        filled = arrays["samples"] > 0
        return {name: np.asarray(arrays[name], float)[filled] for name in FIELDS}


def _diagram(curves: Mapping[str, tuple[Bins, Style]]) -> Draw:
    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=plotting.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        for filled, style in curves.values():
            share = filled["samples"] / filled["samples"].sum()
            plotting.line(axes, filled["confidence"], filled["accuracy"], style, points=False)
            axes.scatter(
                filled["confidence"],
                filled["accuracy"],
                s=12 + 160 * share,
                color=style.colour,
                marker=style.marker,
                linewidths=0,
                zorder=3,
                clip_on=False,
                gid=plotting.data_id(axes),
            )
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("accuracy (%)")
        plotting.scale(axes, "xy", 100)

    return draw


def _counts(curves: Mapping[str, tuple[Bins, Style]]) -> Draw:
    def draw(axes: Axes) -> None:
        for filled, style in curves.values():
            plotting.line(axes, filled["confidence"], filled["samples"], style)
        axes.set_xlim(0, 1.02)
        plotting.from_zero(axes)
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("images in the bin")
        plotting.scale(axes, "x", 100)

    return draw


def _rows(run: Run, label: str, filled: Bins) -> list[dict[str, Any]]:
    points = zip(*(filled[name] for name in FIELDS), strict=True)
    return [
        {"run": run.name, "weights": label} | dict(zip(FIELDS, map(float, point), strict=True))
        for point in points
    ]


def _title(run: Run, baseline: Run | None) -> str:
    with run.parsing("part calibration of its evaluation"):
        numbers = run.parts["calibration"]
        parts = [f"{_ece(numbers['mean'])} with its mean weights"]
        if run.traits.bayesian:
            parts.append(f"{_ece(numbers['mc'])} with {numbers['draws']} draws")
    text = f"The confidence of {run.name} is off by {formatting.listing(parts)}"
    if baseline and baseline.measured("calibration"):
        with baseline.parsing("part calibration of its evaluation"):
            text += f"; that of {baseline.name} by {_ece(baseline.parts['calibration']['mean'])}"
    return f"{text} (ECE)"


def _ece(numbers: dict[str, Any]) -> str:
    return f"{formatting.fixed(100 * number(numbers['ece']['value']))} points"


def _agreement(run: Run, baseline: Run | None) -> tuple[str, ...]:
    gain = gains.clean(run, baseline, "mc", "ece")
    if gain is None or baseline is None or not paper.compares(run, baseline):
        return ()
    side = "below" if gain.value > 0 else "above"
    verdict = f": {paper.DISAGREES}" if gain.high < 0 else ""
    distance = formatting.fixed(abs(float(gain.value)), 2)
    return (
        f"Here that of {run.name} with draws is {distance} points {side} that of {baseline.name}{verdict}.",
    )
