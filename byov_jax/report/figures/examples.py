"""The test images that a run is most and least certain of."""

import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from byov_jax.report import formatting, plotting
from byov_jax.report.comparison import Comparison
from byov_jax.report.plotting import Card, Draw, Figure, Panel
from byov_jax.report.runs import Run

MAX_RUNS = 2
MAX_SIDE = 112
"""Pixels along a side that the page shows; larger images are reduced."""

GROUPS = {True: "most certain", False: "least certain"}
COLUMNS = 6
STEP_X, STEP_Y = 1.15, 1.75
"""Distance between images in the figure, in widths of an image."""


def examples(comparison: Comparison) -> Figure | None:
    """Twelve of each kind, for the first runs that have them."""
    cards: list[Card] = []
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    shown: list[tuple[Run, list[dict[str, Any]]]] = []
    for run in comparison.contenders or comparison.featured:
        images = selected(run) if len(shown) < MAX_RUNS else None
        if not images:
            continue
        shown.append((run, images))
        for certain, label in GROUPS.items():
            group = f"{run.name}: {label}"
            members = [(row, _lines(row)) for row in images if row["certain"] is certain]
            cards += [Card(group, png(row["image"]), lines, row["right"]) for row, lines in members]
            height = STEP_Y * -(-len(members) // COLUMNS)
            panels.append(Panel(group, _grid(members), width=8.4, height=height))
        rows += [{"run": run.name} | {key: row[key] for key in row if key != "image"} for row in images]
    if not shown:
        return None
    count, draws = (shown[0][0].count("calibration", key) for key in ("images", "draws"))
    return Figure(
        name="examples",
        kind="Test images",
        title=_title(*shown[0]),
        caption=(
            f"Of {count} test images those with the lowest and with the highest entropy of the prediction "
            f"averaged over {draws} draws. Below each: predicted class, its probability ± its std over the "
            "draws in percent, and the true class where the prediction is wrong.",
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        cards=tuple(cards),
        columns=1,
    )


def selected(run: Run) -> list[dict[str, Any]] | None:
    """Return the stored images with their predictions; None if the evaluation stored none."""
    numbers = run.measured("calibration")
    arrays = run.arrays("calibration", "examples/", "mc/probs", "mc/std", "label") if numbers else {}
    needed = {"examples/image", "examples/index", "examples/certain", "mc/probs", "mc/std", "label"}
    if not numbers or not needed <= set(arrays) or "classes" not in numbers:
        return None
    rows = []
    with run.parsing("evaluation/calibration.npz"):
        classes = [str(name) for name in numbers["classes"]]
        for image, index, certain in zip(
            *(arrays[f"examples/{name}"] for name in ("image", "index", "certain")), strict=True
        ):
            probs = arrays["mc/probs"][index]
            predicted, label = int(np.argmax(probs)), int(arrays["label"][index])
            rows.append(
                {
                    "image": image,
                    "index": int(index),
                    "certain": bool(certain),
                    "predicted": classes[predicted],
                    "probability": float(probs[predicted]),
                    "std": float(arrays["mc/std"][index]),
                    "true": classes[label],
                    "right": predicted == label,
                }
            )
    return rows or None


def png(image: np.ndarray) -> bytes:
    """Encode an image [height, width, 1 or 3], uint8, as PNG of at most `MAX_SIDE` pixels along a side."""
    reduced = Image.fromarray(_without_grey_channel(image))
    reduced.thumbnail((MAX_SIDE, MAX_SIDE))
    data = io.BytesIO()
    reduced.save(data, "PNG", optimize=True)
    return data.getvalue()


def _without_grey_channel(image: np.ndarray) -> np.ndarray:
    return image[..., 0] if image.shape[-1] == 1 else image


def _lines(row: dict[str, Any]) -> tuple[str, ...]:
    probability = f"{formatting.percent(row['probability'], 0)} ± {formatting.fixed(100 * row['std'], 0)}"
    return (row["predicted"], probability, "" if row["right"] else f"is {row['true']}")


def _grid(members: list[tuple[dict[str, Any], tuple[str, ...]]]) -> Draw:
    def draw(axes: Axes) -> None:
        for index, (row, lines) in enumerate(members):
            image = _without_grey_channel(row["image"])
            left, top = STEP_X * (index % COLUMNS), STEP_Y * (index // COLUMNS)
            extent = (left, left + 1, top + 1, top)
            axes.imshow(image, cmap="gray", vmin=0, vmax=255, extent=extent, gid=plotting.data_id(axes))
            axes.text(left, top + 1.08, "\n".join(lines), va="top", fontsize=8)
        axes.set_xlim(0, STEP_X * COLUMNS)
        axes.set_ylim(STEP_Y * -(-len(members) // COLUMNS), 0)
        axes.set_axis_off()

    return draw


def _title(run: Run, rows: list[dict[str, Any]]) -> str:
    right = {certain: [row["right"] for row in rows if row["certain"] is certain] for certain in GROUPS}
    most, least = (f"{sum(right[certain])} of the {len(right[certain])}" for certain in GROUPS)
    return f"{run.name} is right about {most} images it is most certain of and {least} it is least certain of"
