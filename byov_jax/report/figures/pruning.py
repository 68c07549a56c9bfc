"""R6: accuracy against sparsity, weights removed by signal-to-noise ratio, by magnitude or at random."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import formatting, paper, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.plotting import Draw, Figure, Panel, Style
from byov_jax.report.runs import Run

CRITERIA = {
    "snr": ("by SNR", Style(plotting.COLOURS[1], "-", "s")),
    "magnitude": ("by magnitude", Style(plotting.COLOURS[0], "--", "o")),
    "random": ("at random", Style(plotting.COLOURS[2], "-.", "D")),
}
MEASURES = {
    "accuracy": "Accuracy, same classifier",
    "accuracy with a refitted probe": "Accuracy, probe refitted",
}
Curves = dict[str, tuple[np.ndarray, Style]]


def pruning(comparison: Comparison) -> Figure | None:
    """One panel per contender; a second one if probes were fitted again."""
    baseline = comparison.baseline
    panels, rows = [], []
    legend: dict[str, Style] = {}
    first: Run | None = None
    for run in comparison.contenders or comparison.featured:
        for measure, title in MEASURES.items():
            by_label = curves(run, measure)
            if not by_label:
                continue
            if baseline and baseline.path != run.path:
                by_label |= _of_baseline(run, baseline, measure)
            legend |= {label: style for label, (_, style) in by_label.items()}
            first = first or run
            panels.append(Panel(title, _lines(by_label), run.name))
            for label, (points, _) in by_label.items():
                start = {"run": run.name, "what": measure, "pruned": label}
                rows += [start | {"sparsity": float(s), "accuracy": float(a)} for s, a in points]
    if first is None:
        return None
    return Figure(
        name="pruning",
        kind="Pruning",
        title=_title(first),
        caption=(
            f"{first.count('pruning', 'images')} test images, mean weights. The same fraction of "
            "every kernel of the encoder is set to zero without retraining; only the probe is refitted, "
            "where stated. Random pruning is the baseline of any criterion.",
            paper.PRUNING,
            *_agreement(first),
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple(legend.items()),
        columns=min(3, len(panels)),
    )


def curves(run: Run, measure: str = "accuracy") -> Curves:
    """Return sparsity and accuracy, [points, 2], by criterion; empty if the run was not pruned."""
    numbers = run.measured("pruning") or {}
    with run.parsing("part pruning of its evaluation"):
        return {
            label: (_points(numbers[name], measure), style)
            for name, (label, style) in CRITERIA.items()
            if name in numbers and (measure == "accuracy" or measure in numbers[name][0])
        }


def _of_baseline(run: Run, baseline: Run, measure: str) -> Curves:
    numbers = baseline.measured("pruning") or run.compared.get("pruning")
    with baseline.parsing("part pruning of its evaluation"):
        if not numbers or measure not in numbers["magnitude"][0]:
            return {}
        return {f"{baseline.name}, by magnitude": (_points(numbers["magnitude"], measure), plotting.BASELINE)}


def _points(rows: list[dict[str, Any]], measure: str) -> np.ndarray:
    return np.asarray([(float(row["sparsity"]), float(row[measure])) for row in rows])


def _lines(by_label: Mapping[str, tuple[np.ndarray, Style]]) -> Draw:
    def draw(axes: Axes) -> None:
        for points, style in by_label.values():
            plotting.line(axes, points[:, 0], points[:, 1], style)
        axes.set_xlim(-0.02, 1.0)
        plotting.from_zero(axes)
        axes.set_xlabel("weights removed (%)")
        axes.set_ylabel("accuracy (%)")
        plotting.scale(axes, "xy", 100)

    return draw


def _accuracy_at(points: np.ndarray, sparsity: float) -> float:
    """Interpolate the accuracy linearly between measured sparsities."""
    order = np.argsort(points[:, 0])
    return float(np.interp(sparsity, points[order, 0], points[order, 1]))


def _title(run: Run) -> str:
    by_label = {label: points for label, (points, _) in curves(run).items()}
    parts = [f"{formatting.percent(_accuracy_at(by_label[label], 0.5), 0)} {label}" for label in by_label]
    dense = formatting.percent(max(_accuracy_at(points, 0.0) for points in by_label.values()), 0)
    return f"{run.name} with half its weights: accuracy {formatting.listing(parts)} (with all, {dense})"


def _agreement(run: Run) -> tuple[str, ...]:
    by_label = curves(run)
    if not run.is_byov or not {"by SNR", "by magnitude"} <= set(by_label):
        return ()
    snr, magnitude = (_accuracy_at(by_label[label][0], 0.25) for label in ("by SNR", "by magnitude"))
    gap = 100 * (snr - magnitude)
    verdict = "ahead" if gap > 0 else f"behind: {paper.DISAGREES}"
    share = f"25% of the weights of {run.name}"
    return (f"Here, with {share} removed, SNR is {formatting.fixed(abs(gap))} points {verdict}.",)
