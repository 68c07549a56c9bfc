"""Whole figures as files: panels side by side, what they belong to above them, the legend below."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from PIL import Image

from byov_jax.report import groups, render
from byov_jax.report.draw import Figure
from byov_jax.report.render import DOTS, SETTINGS, Drawing

GAP, HEADING, LEGEND = 0.25, 0.3, 0.24
"""Inches between panels, for the heading of a panel, and for a line of the legend."""

POINTS = 72
"""Units of an SVG to the inch."""


class Place(NamedTuple):
    """Where a panel stands, in inches from the left and from the top."""

    left: float
    top: float
    heading: str


def save(figure: Figure, drawings: Sequence[Drawing], folder: Path) -> None:
    """Writes NAME.svg and NAME.png, and the numbers as NAME.csv."""
    places, width, height = _places(figure)
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": figure.name}):
        canvas = _frame(figure, places, width, height)
        (folder / f"{figure.name}.svg").write_text(_vectors(render.svg(canvas), figure, drawings, places))
        _pixels(render.picture(canvas), drawings, places).save(folder / f"{figure.name}.png")
    (folder / f"{figure.name}.csv").write_text(groups.table(figure.rows))


def _places(figure: Figure) -> tuple[list[Place], float, float]:
    """The place of every panel, and the width and height of the whole."""
    columns = min(figure.columns, len(figure.panels))
    across = max(panel.width for panel in figure.panels) + GAP
    groups_of = ["", *(panel.group for panel in figure.panels)]
    headings = [name if name != before else "" for before, name in itertools.pairwise(groups_of)]
    places, top = [], GAP
    for start in range(0, len(figure.panels), columns):
        row = slice(start, start + columns)
        top += HEADING if any(headings[row]) else 0.0
        places += [Place(GAP + i * across, top, heading) for i, heading in enumerate(headings[row])]
        top += max(panel.height for panel in figure.panels[row]) + GAP
    lines = -(-len(figure.legend) // _in_a_line(columns))
    return places, columns * across + GAP, top + (lines * LEGEND + GAP if lines else 0.0)


def _in_a_line(columns: int) -> int:
    """How many entries of the legend stand side by side."""
    return columns + 1 if columns > 1 else 1


def _frame(figure: Figure, places: Sequence[Place], width: float, height: float) -> Canvas:
    """All but the panels: white ground, headings, legend."""
    canvas = Canvas(figsize=(width, height))
    for place in places:
        x, y = place.left / width, 1 - (place.top - 0.1) / height
        canvas.text(x, y, place.heading, fontsize=10.5, fontweight="bold")
    if figure.legend:
        handles = [Line2D([], [], label=label, **look.options()) for label, look in figure.legend]
        columns = _in_a_line(min(figure.columns, len(figure.panels)))
        canvas.legend(handles=handles, loc="lower left", ncols=min(columns, len(handles)))
    return canvas


def _vectors(frame: str, figure: Figure, drawings: Sequence[Drawing], places: Sequence[Place]) -> str:
    """The frame with the panels set into it, at their places."""
    inside = []
    for drawing, panel, place in zip(drawings, figure.panels, places, strict=True):
        where = f'x="{POINTS * place.left:.2f}" y="{POINTS * place.top:.2f}"'
        size = f'width="{POINTS * panel.width:.2f}" height="{POINTS * panel.height:.2f}"'
        inside.append(
            drawing.svg.replace("<svg ", f'<svg {where} {size} font-family="DejaVu Sans, sans-serif" ', 1)
        )
    end = frame.rindex("</svg>")
    return frame[:end] + "\n".join(inside) + frame[end:]


def _pixels(frame: Image.Image, drawings: Sequence[Drawing], places: Sequence[Place]) -> Image.Image:
    for drawing, place in zip(drawings, places, strict=True):
        frame.alpha_composite(drawing.picture, (round(DOTS * place.left), round(DOTS * place.top)))
    return frame.convert("RGB")
