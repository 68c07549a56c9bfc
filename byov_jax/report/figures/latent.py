"""R8: latent variance against noise strength after the encoder, the projector and the predictor."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import formatting, labels, paper, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.formatting import TIMES
from byov_jax.report.gains import Interval
from byov_jax.report.plotting import Draw, Figure, Panel, Style
from byov_jax.report.runs import Run

TAPS = ("encoder", "projector", "predictor")
Curve = tuple[np.ndarray, Interval, Style]


def latent(comparison: Comparison) -> Figure | None:
    """One panel per tap, one line per run."""
    panels, rows = [], []
    legend: dict[str, Style] = {}
    first: Run | None = None
    for tap in TAPS:
        curves: list[Curve] = []
        for run in comparison.featured:
            numbers = run.measured("latent")
            if not numbers or tap not in numbers:
                continue
            style = plotting.line_style(comparison.settings.index(labels.setting(run)))
            strengths, values = curve(run, tap)
            curves.append((strengths, values, style))
            legend[run.name] = style
            first = first or run
            columns = ("noise", *Interval._fields)
            rows += [
                {"run": run.name, "tap": tap} | dict(zip(columns, map(float, point), strict=True))
                for point in zip(strengths, *values, strict=True)
            ]
        if curves:
            panels.append(Panel(f"After the {tap}", _lines(curves)))
    if first is None:
        return None
    images, draws = (first.count("latent", key) for key in ("images", "draws"))
    return Figure(
        name="latent",
        kind="Latent variance",
        title=_title(first),
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
    """Return the noise strengths and the relative latent variance at each."""
    with run.parsing("part latent of its evaluation"):
        numbers = run.parts["latent"]
        strengths = np.asarray(numbers["strengths"], float)
        ends = (np.asarray(numbers[tap]["relative"][key], float) for key in Interval._fields)
        values = Interval(*(end.reshape(strengths.shape) for end in ends))
    return strengths, values


def _lines(curves: Sequence[Curve]) -> Draw:
    def draw(axes: Axes) -> None:
        for strengths, values, style in curves:
            plotting.band(axes, strengths, values.low, values.high, style)
            plotting.line(axes, strengths, values.value, style)
        plotting.from_zero(axes)
        axes.set_xlabel("standard deviation of the noise")
        axes.set_ylabel("relative latent variance")
        plotting.scale(axes)

    return draw


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
