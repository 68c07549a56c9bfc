"""Training curves: loss, KL, beta, temperature, online accuracies, collapse."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import draw, formatting, labels
from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Figure, Panel, Style
from byov_jax.report.formatting import MINUS
from byov_jax.report.runs import Run
from byov_jax.training.run_directory import METRICS

MOST_POINTS = 250


class Curve(NamedTuple):
    """What a panel shows.

    Attributes:
      key: of the lines of metrics.jsonl.
      title: of the panel.
      axis: the label of y, with its unit.
      methods: whose curves; all if empty.
      share: whether values are shares, shown in percent.
    """

    key: str
    title: str
    axis: str
    methods: tuple[str, ...] = ()
    share: bool = False


CURVES = (
    Curve("loss", "Loss without labels", f"2 {MINUS} 2 cos, both views", ("byol", "byov")),
    Curve("loss", "Loss with labels", "cross-entropy (nats)", ("supervised", "supervised_bbb")),
    Curve("probe", "Linear probe, held-out images", "accuracy (%)", share=True),
    Curve("knn", "Nearest neighbours, held-out images", "accuracy (%)", share=True),
    Curve("embedding_std", "Spread of embeddings", "std (0 = collapsed, 1 = spread)"),
    Curve("kl_per_weight", "KL to the prior", "nats per weight"),
    Curve("beta", "Weight of the KL", "β"),
    Curve("temperature", "Temperature", "β N / Z (1 = exact posterior)"),
)


def training(study: Comparison) -> Figure | None:
    """One line per run, one look per setting."""
    runs = [run for run in study.runs if run.metrics]
    unit = "epoch" if all("epoch" in line for run in runs for line in run.metrics) else "step"
    panels, rows = [], []
    for curve in CURVES:
        found = {}
        for run in runs:
            if not curve.methods or run.method in curve.methods:
                x, y = series(run, unit, curve.key)
                if len(x):
                    found[run.name] = (x, y, _look(study, run))
                    rows += [_row(run, unit, curve.key, *point) for point in zip(x, y, strict=True)]
        if found:
            panels.append(Panel(curve.title, _drawing(curve, unit, list(found.values()))))
    if not panels:
        return None
    legend = {_setting_name(study, run): _look(study, run) for run in runs}
    return Figure(
        name="training",
        kind="Training",
        title=_title(study, runs),
        caption=(
            f"From {METRICS} of each run; a point is the mean of neighbouring lines where there are more "
            f"than {MOST_POINTS}.",
            "The loss is the data term alone, without the KL. The linear probe learns beside the encoder, "
            "behind a stop-gradient; supervised runs show their own head. Neighbours are looked up among "
            "training images.",
            *(("Seeds of one setting look alike.",) if study.is_sweep else ()),
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple(legend.items()),
    )


def series(run: Run, unit: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """The finite values of `key` and where they were taken, averaged down to `MOST_POINTS`."""
    with run.reading(METRICS):
        pairs = [(line.get(unit), line.get(key)) for line in run.metrics]
        pairs = [(float(x), float(y)) for x, y in pairs if x is not None and y is not None]
    values = np.asarray(pairs, float).reshape(-1, 2)
    values = values[np.isfinite(values).all(axis=1)]
    blocks = np.array_split(values, min(MOST_POINTS, max(len(values), 1)))
    means = np.asarray([block.mean(axis=0) for block in blocks if len(block)]).reshape(-1, 2)
    return means[:, 0], means[:, 1]


def _drawing(curve: Curve, unit: str, lines: Sequence[tuple[np.ndarray, np.ndarray, Style]]) -> Any:
    def drawing(axes: Axes) -> None:
        for x, y, look in lines:
            few = len(x) <= 25
            draw.line(axes, x, y, look, points=few, linewidth=1.4)
        axes.set_xlabel(unit)
        axes.set_ylabel(curve.axis)
        if curve.share:
            draw.scale(axes, "y", 100)
        if curve.key in ("loss", "kl_per_weight"):
            draw.logarithmic(axes, "y", [value for _, y, _ in lines for value in y])

    return drawing


def _look(study: Comparison, run: Run) -> Style:
    return draw.style(study.settings.index(labels.setting(run)))


def _setting_name(study: Comparison, run: Run) -> str:
    """The name of a run without its seed."""
    same = [other for other in study.runs if labels.setting(other) == labels.setting(run)]
    return run.name if len(same) == 1 else run.name.replace(f" · seed {run.seed}", "")


def _row(run: Run, unit: str, key: str, x: float, y: float) -> dict[str, Any]:
    return {"run": run.name, unit: float(x), "what": key, "value": float(y)}


def _title(study: Comparison, runs: Sequence[Run]) -> str:
    """What the first run that tells most did: the accuracy it reached, or else its loss."""
    order = sorted(runs, key=lambda run: run.method != "byov")
    for key, what, form in (
        ("probe", "the online probe", formatting.percent),
        ("knn", "nearest-neighbour accuracy", formatting.percent),
        ("loss", "the loss", formatting.short),
    ):
        for run in order:
            _, y = series(run, "step", key)
            if len(y) > 1:
                return f"{run.name}: {what} {formatting.change(form(float(y[0])), form(float(y[-1])))}"
    return "How training went"
