"""Training curves: loss, KL, beta, temperature, online accuracies, collapse."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import formatting, labels, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.formatting import MINUS
from byov_jax.report.plotting import Draw, Figure, Panel, Style
from byov_jax.report.runs import Run
from byov_jax.training.run_directory import METRICS

MAX_POINTS = 250


class Curve(NamedTuple):
    """The content of a panel.

    Attributes:
      key: of the lines of metrics.jsonl.
      title: of the panel.
      label: of the y axis, with its unit.
      supervised: show only methods with (True) or without (False) labels; all if None.
      is_share: whether to show the values in percent.
    """

    key: str
    title: str
    label: str
    supervised: bool | None = None
    is_share: bool = False


CURVES = (
    Curve("loss", "Loss without labels", f"2 {MINUS} 2 cos, both views", supervised=False),
    Curve("loss", "Loss with labels", "cross-entropy (nats)", supervised=True),
    Curve("probe", "Linear probe, held-out images", "accuracy (%)", is_share=True),
    Curve("knn", "Nearest neighbours, held-out images", "accuracy (%)", is_share=True),
    Curve("embedding_std", "Spread of embeddings", "std (0 = collapsed, 1 = uniform)"),
    Curve("kl_per_weight", "KL to the prior", "nats per weight"),
    Curve("beta", "Weight of the KL", "β"),
    Curve("temperature", "Temperature", "β N / Z (1 = exact posterior)"),
)


def training(comparison: Comparison) -> Figure | None:
    """One line per run, one style per setting."""
    runs = [run for run in comparison.runs if run.metrics]
    unit = "epoch" if all("epoch" in line for run in runs for line in run.metrics) else "step"
    panels, rows = [], []
    for curve in CURVES:
        lines = []
        for run in runs:
            if curve.supervised in (None, run.traits.supervised):
                x, y = series(run, unit, curve.key)
                if len(x):
                    lines.append((x, y, _style(comparison, run)))
                    start = {"run": run.name}
                    rows += [
                        start | {unit: float(time), "what": curve.key, "value": float(value)}
                        for time, value in zip(x, y, strict=True)
                    ]
        if lines:
            panels.append(Panel(curve.title, _lines(curve, unit, lines)))
    if not panels:
        return None
    legend = {_setting_name(comparison, run): _style(comparison, run) for run in runs}
    return Figure(
        name="training",
        kind="Training",
        title=_title(runs),
        caption=(
            f"From {METRICS} of each run; a point is the mean of neighbouring lines where there are more "
            f"than {MAX_POINTS}.",
            "The loss is the data term alone, without the KL. The linear probe is trained with the encoder, "
            "behind a stop-gradient; supervised runs show their own head. Neighbours are looked up among "
            "training images.",
            *(("Seeds of one setting look alike.",) if comparison.is_sweep else ()),
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        legend=tuple(legend.items()),
    )


def series(run: Run, unit: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times and finite values of `key`, averaged over neighbours down to `MAX_POINTS`."""
    with run.parsing(METRICS):
        pairs = [(line.get(unit), line.get(key)) for line in run.metrics]
        pairs = [(float(x), float(y)) for x, y in pairs if x is not None and y is not None]
    values = np.asarray(pairs, float).reshape(-1, 2)
    values = values[np.isfinite(values).all(axis=1)]
    blocks = np.array_split(values, min(MAX_POINTS, max(len(values), 1)))
    means = np.asarray([block.mean(axis=0) for block in blocks if len(block)]).reshape(-1, 2)
    return means[:, 0], means[:, 1]


def _lines(curve: Curve, unit: str, lines: Sequence[tuple[np.ndarray, np.ndarray, Style]]) -> Draw:
    def draw(axes: Axes) -> None:
        for x, y, style in lines:
            plotting.line(axes, x, y, style, points=len(x) <= 25, linewidth=1.4)
        axes.set_xlabel(unit)
        axes.set_ylabel(curve.label)
        if curve.is_share:
            plotting.scale(axes, "y", 100)
        if curve.key in ("loss", "kl_per_weight"):
            plotting.logarithmic(axes, [value for _, y, _ in lines for value in y])

    return draw


def _style(comparison: Comparison, run: Run) -> Style:
    return plotting.line_style(comparison.settings.index(labels.setting(run)))


def _setting_name(comparison: Comparison, run: Run) -> str:
    """Return the name of a run without its seed."""
    same = [other for other in comparison.runs if labels.setting(other) == labels.setting(run)]
    return run.name if len(same) == 1 else run.name.replace(f" · seed {run.seed}", "")


def _title(runs: Sequence[Run]) -> str:
    """Describe the first run with an accuracy, or else with a loss; BYOV runs come first."""
    for key, quantity, format_value in (
        ("probe", "the online probe", formatting.percent),
        ("knn", "nearest-neighbour accuracy", formatting.percent),
        ("loss", "the loss", formatting.short),
    ):
        for run in sorted(runs, key=lambda run: not run.is_byov):
            _, y = series(run, "step", key)
            if len(y) > 1:
                change = formatting.change(format_value(float(y[0])), format_value(float(y[-1])))
                return f"{run.name}: {quantity} {change}"
    return "Training curves"
