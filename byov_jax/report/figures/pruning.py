"""R6: accuracy against sparsity: weights removed by signal-to-noise ratio, by magnitude, at random."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import draw, formatting, paper
from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Figure, Panel, Style
from byov_jax.report.runs import Run

LOOKS = {
    "snr": ("by SNR", Style(draw.COLOURS[1], "-", "s")),
    "magnitude": ("by magnitude", Style(draw.COLOURS[0], "--", "o")),
    "random": ("at random", Style(draw.COLOURS[2], "-.", "D")),
}
MEASURES = {
    "accuracy": "Accuracy, same classifier",
    "accuracy with a refitted probe": "Accuracy, probe refitted",
}
Curves = dict[str, tuple[np.ndarray, Style]]


def pruning(study: Comparison) -> Figure | None:
    """One panel per contender; a second one if probes were fitted again."""
    baseline = study.baseline
    shown = [run for run in study.contenders or study.featured if run.measured("pruning")]
    panels, rows = [], []
    legend: dict[str, Style] = {}
    said: Run | None = None
    for run in shown:
        for measure, title in MEASURES.items():
            found = curves(run, measure)
            if not found:
                continue
            if baseline and baseline.path != run.path:
                found |= _of_baseline(run, baseline, measure)
            legend |= {label: look for label, (_, look) in found.items()}
            said = said or run
            panels.append(Panel(title, _drawing(found), run.name))
            rows += [
                {
                    "run": run.name,
                    "what": measure,
                    "pruned": label,
                    "sparsity": float(s),
                    "accuracy": float(a),
                }
                for label, (points, _) in found.items()
                for s, a in points
            ]
    if said is None:
        return None
    return Figure(
        name="pruning",
        kind="Pruning",
        title=_title(said),
        caption=(
            f"{said.count('pruning', 'images')} test images, mean weights. Of every kernel of the "
            "encoder the same share of weights is set to zero, and nothing is trained again but the "
            "probe where it says so. At random is what any criterion has to beat.",
            paper.PRUNING,
            *_agreement(said),
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple(legend.items()),
        columns=min(3, len(panels)),
    )


def curves(run: Run, measure: str = "accuracy") -> Curves:
    """Sparsity and accuracy, [points, 2], by criterion."""
    numbers = run.measured("pruning") or {}
    with run.reading("part pruning of its evaluation"):
        return {
            label: (_points(numbers[name], measure), look)
            for name, (label, look) in LOOKS.items()
            if name in numbers and (measure == "accuracy" or measure in numbers[name][0])
        }


def _of_baseline(run: Run, baseline: Run, measure: str) -> Curves:
    numbers = baseline.measured("pruning") or run.compared.get("pruning")
    with baseline.reading("part pruning of its evaluation"):
        if not numbers or measure not in numbers["magnitude"][0]:
            return {}
        return {f"{baseline.name}, by magnitude": (_points(numbers["magnitude"], measure), draw.BASELINE)}


def _points(rows: list[dict[str, Any]], measure: str) -> np.ndarray:
    return np.asarray([(float(row["sparsity"]), float(row[measure])) for row in rows])


def _drawing(found: Mapping[str, tuple[np.ndarray, Style]]) -> Any:
    def drawing(axes: Axes) -> None:
        for points, look in found.values():
            draw.line(axes, points[:, 0], points[:, 1], look)
        axes.set_xlim(-0.02, 1.0)
        draw.from_zero(axes)
        axes.set_xlabel("weights removed (%)")
        axes.set_ylabel("accuracy (%)")
        draw.scale(axes, "xy", 100)

    return drawing


def _at(points: np.ndarray, sparsity: float) -> float:
    """The accuracy at a sparsity, between measured points on a straight line."""
    order = np.argsort(points[:, 0])
    return float(np.interp(sparsity, points[order, 0], points[order, 1]))


def _title(run: Run) -> str:
    found = curves(run)
    parts = [f"{formatting.percent(_at(points, 0.5), 0)} {label}" for label, (points, _) in found.items()]
    dense = formatting.percent(max(_at(points, 0.0) for points, _ in found.values()), 0)
    return f"{run.name} with half its weights: accuracy {formatting.listing(parts)} (with all, {dense})"


def _agreement(run: Run) -> tuple[str, ...]:
    found = curves(run)
    if run.method != "byov" or not {"by SNR", "by magnitude"} <= set(found):
        return ()
    gap = 100 * (_at(found["by SNR"][0], 0.25) - _at(found["by magnitude"][0], 0.25))
    side = "ahead" if gap > 0 else f"behind: {paper.DISAGREES}"
    share = f"25% of the weights of {run.name}"
    return (f"Here, with {share} removed, SNR is {formatting.fixed(abs(gap))} points {side}.",)
