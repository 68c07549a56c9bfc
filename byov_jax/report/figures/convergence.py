"""R7: how many weight draws are enough."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import draw, formatting, labels, paper
from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Figure, Panel, Style
from byov_jax.report.gains import TAILS
from byov_jax.report.runs import Run

TOLERANCE = "0.01"
Curve = tuple[dict[str, np.ndarray], Style]


def convergence(study: Comparison) -> Figure | None:
    """Error of mean and std against the number of draws, and mean and std themselves."""
    shown: list[tuple[Run, Curve]] = []
    for run in study.featured:
        if run.measured("convergence"):
            arrays = run.arrays("convergence")
            if {"draws", "mean", "std", "mean_error", "std_error"} <= set(arrays):
                with run.reading("evaluation/convergence.npz"):
                    found = {name: np.asarray(array, float) for name, array in arrays.items()}
                    shown.append((run, (found, draw.style(study.settings.index(labels.setting(run))))))
    if not shown:
        return None
    curves = [curve for _, curve in shown]
    run, (first, _) = shown[0]
    images, repeats = (run.count("convergence", key) for key in ("images", "repeats"))
    return Figure(
        name="convergence",
        kind="Draws",
        title=_title(run, first),
        caption=(
            f"{images} test images; the probability of the class that all "
            f"{len(first['draws'])} draws together favour, in {repeats} bootstrap repeats: "
            "each picks draws with replacement and looks at the first K. Error: root mean square "
            "distance to what all draws say, dashed: 1 point. Bands hold 95% of the repeats.",
            paper.CONVERGENCE,
        ),
        panels=(
            Panel("Error of the predictive mean", _errors(curves, "mean_error")),
            Panel("Error of the predictive std", _errors(curves, "std_error")),
            Panel("Predictive mean", _repeats(curves, "mean", "mean probability (%)")),
            Panel("Predictive std", _repeats(curves, "std", "std of the probability (%)")),
        ),
        rows=tuple(row for run, (found, _) in shown for row in _rows(run, found)),
        legend=tuple((run.name, look) for run, (_, look) in shown),
        columns=2,
    )


def _errors(curves: Sequence[Curve], name: str) -> Any:
    def drawing(axes: Axes) -> None:
        for found, look in curves:
            draw.line(axes, found["draws"], found[name], look, points=False)
        axes.axhline(float(TOLERANCE), color=draw.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        draw.from_zero(axes)
        axes.set_xlabel("draws K")
        axes.set_ylabel("error of the probability (%)")
        draw.scale(axes, "y", 100)

    return drawing


def _repeats(curves: Sequence[Curve], name: str, label: str) -> Any:
    def drawing(axes: Axes) -> None:
        for found, look in curves:
            low, high = np.quantile(found[name], TAILS, axis=0)
            draw.band(axes, found["draws"], low, high, look)
            draw.line(axes, found["draws"], found[name].mean(axis=0), look, points=False)
        axes.set_xlabel("draws K")
        axes.set_ylabel(label)
        draw.scale(axes, "y", 100)

    return drawing


def _rows(run: Run, found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    rows = []
    for k in range(len(found["draws"])):
        row = {"run": run.name, "draws": int(found["draws"][k])}
        for name in ("mean", "std"):
            low, high = np.quantile(found[name][:, k], TAILS)
            row |= {
                name: float(found[name][:, k].mean()),
                f"{name}_low": float(low),
                f"{name}_high": float(high),
                f"{name}_error": float(found[f"{name}_error"][k]),
            }
        rows.append(row)
    return rows


def _title(run: Run, found: dict[str, np.ndarray]) -> str:
    with run.reading("part convergence of its evaluation"):
        enough = run.parts["convergence"]["draws enough"][TOLERANCE]
    if enough:
        return f"{run.name}: {enough} draws are enough for a predictive mean within 1 point"
    error = formatting.fixed(100 * float(found["mean_error"][-1]))
    count = len(found["draws"])
    return f"{run.name}: {count} draws still leave an error of {error} points in the predictive mean"
