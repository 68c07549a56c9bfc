"""R7: error of predictive mean and std against the number of weight draws."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import formatting, labels, paper, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.gains import TAILS
from byov_jax.report.plotting import Draw, Figure, Panel, Style
from byov_jax.report.runs import Run

TOLERANCE = "0.01"
Curve = tuple[dict[str, np.ndarray], Style]


def convergence(comparison: Comparison) -> Figure | None:
    """Error of mean and std against the number of draws, and mean and std themselves."""
    shown: list[tuple[Run, Curve]] = []
    for run in comparison.featured:
        if run.measured("convergence"):
            arrays = run.arrays("convergence")
            if {"draws", "mean", "std", "mean_error", "std_error"} <= set(arrays):
                with run.parsing("evaluation/convergence.npz"):
                    arrays = {name: np.asarray(array, float) for name, array in arrays.items()}
                index = comparison.settings.index(labels.setting(run))
                shown.append((run, (arrays, plotting.line_style(index))))
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
            f"{images} test images; the probability of the class that the mean "
            f"of all {len(first['draws'])} draws predicts, in {repeats} bootstrap repeats: "
            "each resamples the draws and takes the first K. Error: root mean square "
            "difference from all draws, dashed: 1 point. Bands hold 95% of the repeats.",
            paper.CONVERGENCE,
        ),
        panels=(
            Panel("Error of the predictive mean", _errors(curves, "mean_error")),
            Panel("Error of the predictive std", _errors(curves, "std_error")),
            Panel("Predictive mean", _repeats(curves, "mean", "mean probability (%)")),
            Panel("Predictive std", _repeats(curves, "std", "std of the probability (%)")),
        ),
        rows=tuple(row for run, (arrays, _) in shown for row in _rows(run, arrays)),
        legend=tuple((run.name, style) for run, (_, style) in shown),
        columns=2,
    )


def _errors(curves: Sequence[Curve], name: str) -> Draw:
    def draw(axes: Axes) -> None:
        for arrays, style in curves:
            plotting.line(axes, arrays["draws"], arrays[name], style, points=False)
        axes.axhline(float(TOLERANCE), color=plotting.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        plotting.from_zero(axes)
        axes.set_xlabel("draws K")
        axes.set_ylabel("error of the probability (%)")
        plotting.scale(axes, "y", 100)

    return draw


def _repeats(curves: Sequence[Curve], name: str, label: str) -> Draw:
    def draw(axes: Axes) -> None:
        for arrays, style in curves:
            low, high = np.quantile(arrays[name], TAILS, axis=0)
            plotting.band(axes, arrays["draws"], low, high, style)
            plotting.line(axes, arrays["draws"], arrays[name].mean(axis=0), style, points=False)
        axes.set_xlabel("draws K")
        axes.set_ylabel(label)
        plotting.scale(axes, "y", 100)

    return draw


def _rows(run: Run, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    rows = []
    for k in range(len(arrays["draws"])):
        row = {"run": run.name, "draws": int(arrays["draws"][k])}
        for name in ("mean", "std"):
            low, high = np.quantile(arrays[name][:, k], TAILS)
            row |= {
                name: float(arrays[name][:, k].mean()),
                f"{name}_low": float(low),
                f"{name}_high": float(high),
                f"{name}_error": float(arrays[f"{name}_error"][k]),
            }
        rows.append(row)
    return rows


def _title(run: Run, arrays: dict[str, np.ndarray]) -> str:
    with run.parsing("part convergence of its evaluation"):
        enough = run.parts["convergence"]["draws enough"][TOLERANCE]
    if enough:
        return f"{run.name}: {enough} draws are enough for a predictive mean within 1 point"
    error = formatting.fixed(100 * float(arrays["mean_error"][-1]))
    count = len(arrays["draws"])
    return f"{run.name}: {count} draws still leave an error of {error} points in the predictive mean"
