"""Reliability diagrams: is what is predicted with 80% confidence right in 80% of cases?"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import draw, formatting, gains, paper
from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Figure, Panel, Style
from byov_jax.report.runs import Run, number

FIELDS = ("samples", "confidence", "accuracy")
Bins = dict[str, np.ndarray]


def reliability(study: Comparison) -> Figure | None:
    """Accuracy against confidence, and how many images each bin holds."""
    baseline = study.baseline
    against = bins(baseline, "mean") if baseline else None
    shown = [run for run in study.contenders or study.featured if run.measured("calibration")]
    panels, rows, said = [], [], []
    legend: dict[str, Style] = {}
    for run in shown:
        looks = {"mean": (draw.MEAN, "mean weights")}
        if run.bayesian:
            looks["mc"] = (draw.DRAWS, "draws of the weights")
        curves: dict[str, tuple[Bins, Style]] = {}
        for mode, (look, label) in looks.items():
            found = bins(run, mode)
            if found:
                curves[label] = (found, look)
                rows += _rows(run, label, found)
        if not curves:
            continue
        if against and baseline and baseline.path != run.path:
            curves[f"{baseline.name}, mean weights"] = (against, draw.BASELINE)
        legend |= {label: look for label, (_, look) in curves.items()}
        panels.append(Panel("Accuracy against confidence", _diagram(curves), run.name))
        panels.append(Panel("Where the images are", _counts(curves), run.name))
        said.append(run)
    if not panels:
        return None
    if against and baseline and baseline not in said:
        rows += _rows(baseline, "mean weights", against)
    images, draws = (said[0].count("calibration", key) for key in ("images", "draws"))
    return Figure(
        name="reliability",
        kind="Calibration",
        title=_title(said[0], baseline if baseline not in said else None),
        caption=(
            f"{images} test images in 15 bins of equal width by the probability of the "
            "predicted class; the area of a point grows with the number of its images. On the dashed "
            "diagonal confidence is deserved; below it the model is too sure, above it too modest.",
            f"The probabilities of {draws} draws are averaged. Self-supervised features are "
            "classified by a linear probe that was fitted to those of the mean weights.",
            paper.RELIABILITY,
            *_agreement(said[0], baseline),
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple(legend.items()),
        columns=2,
    )


def bins(run: Run, mode: str) -> Bins | None:
    """The bins of the diagram that hold images: samples, confidence and accuracy."""
    prefix = f"{mode}/bins/"
    found = {name.removeprefix(prefix): array for name, array in run.arrays("calibration", prefix).items()}
    if not run.measured("calibration") or not set(FIELDS) <= set(found):
        return None
    with run.reading("evaluation/calibration.npz"):
        filled = found["samples"] > 0
        return {name: np.asarray(found[name], float)[filled] for name in FIELDS}


def _diagram(curves: Mapping[str, tuple[Bins, Style]]) -> Any:
    def drawing(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=draw.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        for found, look in curves.values():
            share = found["samples"] / found["samples"].sum()
            draw.line(axes, found["confidence"], found["accuracy"], look, points=False)
            axes.scatter(
                found["confidence"],
                found["accuracy"],
                s=12 + 160 * share,
                color=look.colour,
                marker=look.marker,
                linewidths=0,
                zorder=3,
                clip_on=False,
                gid=draw.data(axes),
            )
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("accuracy (%)")
        draw.scale(axes, "xy", 100)

    return drawing


def _counts(curves: Mapping[str, tuple[Bins, Style]]) -> Any:
    def drawing(axes: Axes) -> None:
        for found, look in curves.values():
            draw.line(axes, found["confidence"], found["samples"], look)
        axes.set_xlim(0, 1.02)
        draw.from_zero(axes)
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("images in the bin")
        draw.scale(axes, "x", 100)

    return drawing


def _rows(run: Run, label: str, found: Bins) -> list[dict[str, Any]]:
    points = zip(*(found[name] for name in FIELDS), strict=True)
    return [
        {"run": run.name, "weights": label} | dict(zip(FIELDS, map(float, point), strict=True))
        for point in points
    ]


def _title(run: Run, baseline: Run | None) -> str:
    with run.reading("part calibration of its evaluation"):
        numbers = run.parts["calibration"]
        parts = [f"{_points(numbers['mean'])} with its mean weights"]
        if run.bayesian:
            parts.append(f"{_points(numbers['mc'])} with {numbers['draws']} draws")
    text = f"The confidence of {run.name} is off by {formatting.listing(parts)}"
    if baseline and baseline.measured("calibration"):
        with baseline.reading("part calibration of its evaluation"):
            text += f"; that of {baseline.name} by {_points(baseline.parts['calibration']['mean'])}"
    return f"{text} (ECE)"


def _points(numbers: dict[str, Any]) -> str:
    return f"{formatting.fixed(100 * number(numbers['ece']['value']))} points"


def _agreement(run: Run, baseline: Run | None) -> tuple[str, ...]:
    gain = gains.clean(run, baseline, "mc", "ece")
    if gain is None or baseline is None or (run.method, baseline.method) != paper.COMPARED:
        return ()
    side = "below" if gain.value > 0 else "above"
    unlike = f": {paper.DISAGREES}" if gain.high < 0 else ""
    distance = formatting.fixed(abs(float(gain.value)), 2)
    return (
        f"Here that of {run.name} with draws is {distance} points {side} that of {baseline.name}{unlike}.",
    )
