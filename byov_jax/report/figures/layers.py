"""R3: sigma and signal-to-noise ratio of every kernel over training, coloured by depth."""

import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_hex

from byov_jax.report import formatting, labels, paper, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.formatting import SIGMA
from byov_jax.report.plotting import Draw, Figure, Panel
from byov_jax.report.runs import Run, natural_key, number
from byov_jax.training.run_directory import POSTERIOR

QUANTITIES = {
    "sigma_mean": (f"Mean {SIGMA}", f"mean {SIGMA} of a kernel"),
    "sigma_max": (f"Largest {SIGMA}", f"largest {SIGMA} of a kernel"),
    "snr_mean": ("Mean SNR", f"mean |μ| / {SIGMA} of a kernel"),
    "snr_max": ("Largest SNR", f"largest |μ| / {SIGMA} of a kernel"),
}
"""Keys of posterior.jsonl, with the title and the label of their panels."""

PARTS = ("encoder", "projector", "predictor", "head")
WITHIN_BLOCK = ("qkv", "out", "up", "down")
MAX_TIMES = 60


def layers(comparison: Comparison) -> Figure | None:
    """Four panels for every featured run with a posterior log."""
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    shown = []
    for run in comparison.featured:
        if not run.posterior:
            continue
        with run.parsing(POSTERIOR):
            unit, times, kernels, values = statistics(run)
        if not kernels:
            continue
        group = f"{run.name}, prior {labels.prior(run)}" if labels.prior(run) not in run.name else run.name
        for index, (key, (title, label)) in enumerate(QUANTITIES.items()):
            panels.append(Panel(title, _lines(unit, times, kernels, values[index], label), group))
            rows += [
                {"run": run.name, unit: float(times[t]), "layer": kernel, "what": key, "value": float(value)}
                for k, kernel in enumerate(kernels)
                for t, value in enumerate(values[index][:, k])
            ]
        shown.append((run, times, values))
    if not panels:
        return None
    return Figure(
        name="layers",
        kind="Posterior",
        title=_title(*shown[0]),
        caption=(
            f"{SIGMA} = exp(log_var / 2) and the signal-to-noise ratio |μ| / {SIGMA} of every Bayesian "
            "kernel. A line is a layer, its colour its depth from the input (dark) to the output "
            "(bright); the projector is dashed, the predictor dotted. The title has the median over "
            "layers.",
            f"From {POSTERIOR}, written while training; biases and norms are left out.",
            paper.LAYERS,
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        columns=4 if len(shown) > 3 else 2,
    )


def statistics(run: Run) -> tuple[str, np.ndarray, list[str], np.ndarray]:
    """Extract the statistics of all kernels from posterior.jsonl.

    Returns:
      "epoch" or "step"; the times; the kernels by depth; the values [quantities, times, kernels].
    """
    lines = run.posterior
    keep = np.unique(np.linspace(0, len(lines) - 1, min(MAX_TIMES, len(lines))).round().astype(int))
    lines = tuple(lines[i] for i in keep)
    unit = "epoch" if all("epoch" in line for line in lines) else "step"
    paths = [path for path in lines[-1]["layers"] if path.rsplit("/", 1)[-1] in ("kernel", "weight")]
    kernels = sorted(paths, key=depth)
    values = [
        [[number(line["layers"].get(path, {}).get(key)) for path in kernels] for line in lines]
        for key in QUANTITIES
    ]
    shape = (len(QUANTITIES), len(lines), len(kernels))
    return unit, np.asarray([float(line[unit]) for line in lines]), kernels, np.reshape(values, shape)


def depth(path: str) -> tuple:
    """A key that sorts kernels from the input to the output, by their names in the networks."""
    names = path.split("/")
    part = PARTS.index(names[0]) if names[0] in PARTS else len(PARTS)
    is_stem = bool(re.search(r"patch|stem", path))
    within = [WITHIN_BLOCK.index(name) if name in WITHIN_BLOCK else -1 for name in names]
    return part, not is_stem, natural_key("/".join(names[:-2])), max(within), natural_key(path)


def _lines(unit: str, times: np.ndarray, kernels: Sequence[str], values: np.ndarray, label: str) -> Draw:
    def draw(axes: Axes) -> None:
        count = len(kernels)
        colours = matplotlib.colormaps["cividis"](np.linspace(0.0, 0.92, count))
        for index, kernel in enumerate(kernels):
            dashes = {"projector": "--", "predictor": ":"}.get(kernel.split("/")[0], "-")
            style = plotting.Style(to_hex(colours[index]), dashes, "o")
            plotting.line(axes, times, values[:, index], style, points=len(times) == 1, linewidth=1.2)
        axes.set_xlabel(unit)
        axes.set_ylabel(label)
        plotting.scale(axes)
        plotting.logarithmic(axes, values.ravel(), min_ratio=8.0)
        edges = BoundaryNorm(np.arange(count + 1) - 0.5, count)
        mapping = ScalarMappable(edges, ListedColormap(colours))
        bar = axes.figure.colorbar(mapping, ax=axes, aspect=28, pad=0.02)
        bar.outline.set_visible(False)
        ticks = _part_starts(kernels)
        bar.set_ticks(list(ticks), labels=list(ticks.values()))
        bar.ax.tick_params(length=0, labelsize=9, which="both")
        bar.ax.minorticks_off()

    return draw


def _part_starts(kernels: Sequence[str]) -> dict[float, str]:
    """Return the positions along the colour bar where each part of the network begins."""
    ticks: dict[float, str] = {}
    for index, kernel in enumerate(kernels):
        part = kernel.split("/")[0]
        if part not in ticks.values():
            ticks[index] = part
    return ticks


def _title(run: Run, times: np.ndarray, values: np.ndarray) -> str:
    first, last = (np.nanmedian(values[:, t], axis=1) for t in (0, -1))
    if len(times) == 1:
        return f"{run.name}: mean {SIGMA} {formatting.short(last[0])}, mean SNR {formatting.short(last[2])}"
    sigma, snr = (formatting.change(formatting.short(first[k]), formatting.short(last[k])) for k in (0, 2))
    return f"{run.name}: over training the mean {SIGMA} of a kernel {sigma}, its mean SNR {snr}"
