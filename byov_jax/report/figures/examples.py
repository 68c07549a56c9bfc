"""The test images that a run is most certain of, and those it is least certain of."""

import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from byov_jax.report import draw, formatting
from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Card, Figure, Panel
from byov_jax.report.runs import Run

MOST_RUNS = 2
LARGEST = 112
"""Pixels along a side that the page shows; larger images are reduced."""

GROUPS = {True: "most certain", False: "least certain"}
ACROSS = 6


def examples(study: Comparison) -> Figure | None:
    """Twelve of each, for the first runs that kept them."""
    cards: list[Card] = []
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    said: list[tuple[Run, list[dict[str, Any]]]] = []
    for run in study.contenders or study.featured:
        found = chosen(run) if len(said) < MOST_RUNS else None
        if not found:
            continue
        said.append((run, found))
        for certain, label in GROUPS.items():
            group = f"{run.name}: {label}"
            shown = [(row, _lines(row)) for row in found if row["certain"] is certain]
            cards += [Card(group, png(row["image"]), lines, row["right"]) for row, lines in shown]
            height = 1.75 * -(-len(shown) // ACROSS)
            panels.append(Panel(group, _drawing(shown), width=8.4, height=height))
        rows += [{"run": run.name} | {key: row[key] for key in row if key != "image"} for row in found]
    if not said:
        return None
    images, draws = (said[0][0].count("calibration", key) for key in ("images", "draws"))
    return Figure(
        name="examples",
        kind="Test images",
        title=_title(*said[0]),
        caption=(
            f"Of {images} test images those with the lowest and with the highest entropy of the prediction "
            f"averaged over {draws} draws. Below each: predicted class, its probability ± its std over the "
            "draws in percent, and the true class where the prediction is wrong.",
        ),
        panels=tuple(panels),
        rows=tuple(rows),
        cards=tuple(cards),
        columns=1,
    )


def chosen(run: Run) -> list[dict[str, Any]] | None:
    """The kept images with what was predicted; None if an evaluation kept none."""
    numbers = run.measured("calibration")
    arrays = run.arrays("calibration", "examples/", "mc/probs", "mc/std", "label") if numbers else {}
    needed = {"examples/image", "examples/index", "examples/certain", "mc/probs", "mc/std", "label"}
    if not numbers or not needed <= set(arrays) or "classes" not in numbers:
        return None
    rows = []
    with run.reading("evaluation/calibration.npz"):
        classes = [str(name) for name in numbers["classes"]]
        for image, index, certain in zip(
            *(arrays[f"examples/{name}"] for name in ("image", "index", "certain")), strict=True
        ):
            probs = arrays["mc/probs"][index]
            favourite, true = int(np.argmax(probs)), int(arrays["label"][index])
            rows.append(
                {
                    "image": image,
                    "index": int(index),
                    "certain": bool(certain),
                    "predicted": classes[favourite],
                    "probability": float(probs[favourite]),
                    "std": float(arrays["mc/std"][index]),
                    "true": classes[true],
                    "right": favourite == true,
                }
            )
    return rows or None


def png(image: np.ndarray) -> bytes:
    """An image [height, width, 1 or 3], uint8, as PNG of at most `LARGEST` pixels along a side."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    picture.thumbnail((LARGEST, LARGEST))
    data = io.BytesIO()
    picture.save(data, "PNG", optimize=True)
    return data.getvalue()


def _lines(row: dict[str, Any]) -> tuple[str, ...]:
    probability = f"{formatting.percent(row['probability'], 0)} ± {formatting.fixed(100 * row['std'], 0)}"
    return (row["predicted"], probability, "" if row["right"] else f"is {row['true']}")


def _drawing(shown: list[tuple[dict[str, Any], tuple[str, ...]]]) -> Any:
    def drawing(axes: Axes) -> None:
        for index, (row, lines) in enumerate(shown):
            image = row["image"][..., 0] if row["image"].shape[-1] == 1 else row["image"]
            left, top = 1.15 * (index % ACROSS), 1.75 * (index // ACROSS)
            place = (left, left + 1, top + 1, top)
            axes.imshow(image, cmap="gray", vmin=0, vmax=255, extent=place, gid=draw.data(axes))
            axes.text(left, top + 1.08, "\n".join(lines), va="top", fontsize=8)
        axes.set_xlim(0, 1.15 * ACROSS)
        axes.set_ylim(1.75 * -(-len(shown) // ACROSS), 0)
        axes.set_axis_off()

    return drawing


def _title(run: Run, found: list[dict[str, Any]]) -> str:
    right = {certain: [row["right"] for row in found if row["certain"] is certain] for certain in GROUPS}
    most, least = (f"{sum(right[certain])} of the {len(right[certain])}" for certain in GROUPS)
    return f"{run.name} is right about {most} images it is most certain of and {least} it is least certain of"
