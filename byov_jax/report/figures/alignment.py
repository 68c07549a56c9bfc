"""R4: per-image predictive std of a run against that of a supervised Bayesian model."""

import numpy as np
from matplotlib.axes import Axes

from byov_jax.report import formatting, paper, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.gains import Interval
from byov_jax.report.plotting import Draw, Figure, Panel
from byov_jax.report.runs import Run

ARRAYS = ("x", "y", "grid_x", "grid_y", "density")
MASSES = (0.9, 0.7, 0.5, 0.3, 0.1)


def alignment(comparison: Comparison) -> Figure | None:
    """One panel per run, one point per image."""
    panels, rows, shown = [], [], []
    for run in comparison.featured:
        if not run.measured("alignment"):
            continue
        arrays = run.arrays("alignment")
        if not set(ARRAYS) <= set(arrays):
            continue
        with run.parsing("evaluation/alignment.npz"):
            arrays = {name: np.asarray(arrays[name], float) for name in ARRAYS}
            grid = len(arrays["grid_y"]), len(arrays["grid_x"])
            arrays["density"] = arrays["density"].reshape(grid)
            points = np.stack([arrays["x"], arrays["y"]], axis=1)
        title = f"Rank correlation {_correlation(run, 'spearman')}"
        panels.append(Panel(title, _scatter(arrays), run.name, height=3.6))
        rows += [{"run": run.name, "supervised_std": float(x), "std": float(y)} for x, y in points]
        shown.append(run)
    if not shown:
        return None
    images, draws = (shown[0].count("alignment", key) for key in ("images", "draws"))
    linear = _correlation(shown[0], "pearson")
    return Figure(
        name="alignment",
        kind="Two kinds of doubt",
        title=_title(shown[0]),
        caption=(
            f"Predictive std: that of the predicted class's probability over {draws} draws. "
            f"One point for each of {images} test images; the contours of a Gaussian kernel "
            "estimate hold 10, 30, 50, 70 and 90% of its mass. Brackets are 95% intervals over resamples "
            f"of the images. Linear correlation: {linear}.",
            paper.ALIGNMENT,
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        columns=min(3, len(panels)),
    )


def levels(density: np.ndarray, masses: tuple[float, ...] = MASSES) -> list[float]:
    """Return the densities above which the given shares of the mass lie, ascending."""
    ordered = np.sort(density.ravel())[::-1]
    total = np.cumsum(ordered) / ordered.sum()
    return [float(ordered[np.searchsorted(total, mass)]) for mass in sorted(masses, reverse=True)]


def _scatter(arrays: dict[str, np.ndarray]) -> Draw:
    def draw(axes: Axes) -> None:
        axes.scatter(
            arrays["x"],
            arrays["y"],
            s=7,
            color=plotting.COLOURS[0],
            alpha=0.4,
            linewidths=0,
            rasterized=True,  # an SVG of thousands of points would be slow to show
            gid=plotting.data_id(axes),
        )
        contours = axes.contour(
            arrays["grid_x"],
            arrays["grid_y"],
            arrays["density"],
            sorted(set(levels(arrays["density"]))),
            colors=plotting.COLOURS[1],
            linewidths=1.0,
        )
        contours.set_gid(plotting.data_id(axes))
        axes.set_xlim(left=max(0.0, arrays["grid_x"][0]))
        axes.set_ylim(bottom=max(0.0, arrays["grid_y"][0]))
        axes.set_xlabel("predictive std, supervised BBB (%)")
        axes.set_ylabel("predictive std, this run (%)")
        plotting.scale(axes, "xy", 100)

    return draw


def _interval(run: Run, kind: str) -> Interval:
    with run.parsing("part alignment of its evaluation"):
        return Interval.from_json(run.parts["alignment"][kind])


def _correlation(run: Run, kind: str) -> str:
    value, low, high = _interval(run, kind)
    return f"{formatting.fixed(value, 2)} {formatting.interval(low, high, 2)}"


def _title(run: Run) -> str:
    _, low, high = _interval(run, "spearman")
    if low > 0:
        start = f"{run.name} tends to be uncertain of images where supervised BBB is"
    elif high < 0:
        start = f"{run.name} tends to be certain of images where supervised BBB is uncertain"
    else:
        start = f"No evidence that the uncertainty of {run.name} correlates with that of supervised BBB"
    return f"{start}: rank correlation {_correlation(run, 'spearman')}"
