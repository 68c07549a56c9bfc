"""R8: latent variance against the strength of noise, at three places in the network."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import draw, formatting, labels, paper
from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Figure, Panel, Style
from byov_jax.report.formatting import TIMES
from byov_jax.report.gains import Interval
from byov_jax.report.runs import Run

TAPS = ("encoder", "projector", "predictor")
Curve = tuple[np.ndarray, Interval, Style]


def latent(study: Comparison) -> Figure | None:
    """One panel per tap, one line per run."""
    panels, rows = [], []
    legend: dict[str, Style] = {}
    said: Run | None = None
    for tap in TAPS:
        found: list[Curve] = []
        for run in study.featured:
            numbers = run.measured("latent")
            if not numbers or tap not in numbers:
                continue
            look = draw.style(study.settings.index(labels.setting(run)))
            strengths, values = curve(run, tap)
            found.append((strengths, values, look))
            legend[run.name] = look
            said = said or run
            rows += [
                {
                    "run": run.name,
                    "tap": tap,
                    "noise": float(s),
                    "value": float(v),
                    "low": float(a),
                    "high": float(b),
                }
                for s, v, a, b in zip(strengths, *values, strict=True)
            ]
        if found:
            panels.append(Panel(f"After the {tap}", _drawing(found)))
    if said is None:
        return None
    images, draws = (said.count("latent", key) for key in ("images", "draws"))
    return Figure(
        name="latent",
        kind="Latent variance",
        title=_title(said),
        caption=(
            f"Variance of the features over {draws} draws of the weights, divided by their "
            f"mean square, averaged over features and over {images} test images with "
            "Gaussian noise of that standard deviation (pixels from 0 to 1; draws and pattern of the "
            "noise are the same at every strength). Bands are 95% intervals over resamples of the images.",
            paper.LATENT,
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple(legend.items()),
    )


def curve(run: Run, tap: str) -> tuple[np.ndarray, Interval]:
    """Strengths of noise, and the relative latent variance at each."""
    with run.reading("part latent of its evaluation"):
        numbers = run.parts["latent"]
        strengths = np.asarray(numbers["strengths"], float)
        ends = (np.asarray(numbers[tap]["relative"][key], float) for key in Interval._fields)
        values = Interval(*(end.reshape(strengths.shape) for end in ends))
    return strengths, values


def _drawing(found: Sequence[Curve]) -> Any:
    def drawing(axes: Axes) -> None:
        for strengths, values, look in found:
            draw.band(axes, strengths, values.low, values.high, look)
            draw.line(axes, strengths, values.value, look)
        draw.from_zero(axes)
        axes.set_xlabel("standard deviation of the noise")
        axes.set_ylabel("relative latent variance")
        draw.scale(axes)

    return drawing


def _title(run: Run) -> str:
    changes = []
    for tap in TAPS:
        if tap in run.parts["latent"]:
            strengths, values = curve(run, tap)
            first, last = np.asarray(values.value)[[0, -1]]
            changes.append(
                f"{TIMES}{formatting.short(last / first)} after the {tap}" if first > 0 else f"0 at the {tap}"
            )
    change = f"the latent variance of {run.name} changes {formatting.listing(changes)}"
    return f"From clean images to noise of {strengths[-1]:g}, {change}"
