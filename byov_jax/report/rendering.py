"""Render figures: each panel as SVG for the page and in pixels, and whole figures as files."""

import io
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from PIL import Image

from byov_jax.report import formatting
from byov_jax.report.plotting import FAINT, GRID, INK, Figure, Panel

DPI = 150
SVG_UNITS = 72
"""SVG units per inch."""

GAP, HEADING, LEGEND = 0.25, 0.3, 0.24
"""Height in inches of the gap between panels, of a heading, and of a line of the legend."""

MAX_TICKS = 6
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "figure.facecolor": "white",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


class RenderedPanel(NamedTuple):
    """A panel after drawing.

    Attributes:
      svg: for inlining in a page: its ids are unique to the panel.
      image: the same in pixels, `DPI` to the inch, transparent.
    """

    svg: str
    image: Image.Image


class Position(NamedTuple):
    """The position of a panel in a figure, in inches from the left and from the top, and its heading."""

    left: float
    top: float
    heading: str


def render(figure: Figure) -> list[RenderedPanel]:
    """Render every panel of a figure."""
    return [_render(panel, f"{figure.name}-{index}") for index, panel in enumerate(figure.panels)]


def save(figure: Figure, panels: Sequence[RenderedPanel], folder: Path) -> None:
    """Write the whole figure as NAME.svg and NAME.png, and its numbers as NAME.csv."""
    positions, width, height = _layout(figure)
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": figure.name}):
        canvas = _frame(figure, positions, width, height)
        (folder / f"{figure.name}.svg").write_text(_insert_svg(_svg(canvas), figure, panels, positions))
        image = _pixels(canvas)
    for panel, position in zip(panels, positions, strict=True):
        image.alpha_composite(panel.image, (round(DPI * position.left), round(DPI * position.top)))
    image.convert("RGB").save(folder / f"{figure.name}.png")
    (folder / f"{figure.name}.csv").write_text(formatting.csv_text(figure.rows))


def _render(panel: Panel, name: str) -> RenderedPanel:
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": name}):
        canvas = Canvas(figsize=(panel.width, panel.height), facecolor="none")
        FigureCanvasAgg(canvas)  # measures text; without it each measurement would set up SVG
        axes = canvas.subplots()
        panel.draw(axes)
        axes.set_title(panel.title)
        for axis in (axes.xaxis, axes.yaxis):
            locator = axis.get_major_locator()
            if isinstance(locator, MaxNLocator):
                locator.set_params(nbins=MAX_TICKS)
        canvas.tight_layout(pad=0.3)
        return RenderedPanel(_for_page(_svg(canvas), name), _pixels(canvas))


def _svg(canvas: Canvas) -> str:
    """Return the SVG file, without the date."""
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, dpi=DPI)
    return text.getvalue()


def _pixels(canvas: Canvas) -> Image.Image:
    """Return the image, RGBA."""
    canvas.set_dpi(DPI)
    agg = FigureCanvasAgg(canvas)
    agg.draw()
    return Image.fromarray(np.asarray(agg.buffer_rgba()))


def _for_page(text: str, name: str) -> str:
    """Strip header, metadata, style and font, prefix all ids with `name`, and round coordinates."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)

    def tag(match: re.Match) -> str:
        content = re.sub(r"\s+", " ", match.group())
        content = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", content)
        content = re.sub(r"font-family: [^;\"]*;? ?", "", content)
        content = re.sub(r' transform="rotate\(-0 [^"]*"', "", content)
        return content if "base64" in content else re.sub(r"(\d\.\d\d)\d+", r"\1", content)

    text = re.sub(r">\s+<", "><", re.sub(r"<[^>]*>", tag, text))
    return re.sub(r'^<svg[^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 aria-hidden="true">', text)


def _layout(figure: Figure) -> tuple[list[Position], float, float]:
    """Return the position of every panel, and the width and height of the figure."""
    columns = min(figure.columns, len(figure.panels))
    stride = max(panel.width for panel in figure.panels) + GAP
    groups = ["", *(panel.group for panel in figure.panels)]
    headings = [group if group != previous else "" for previous, group in itertools.pairwise(groups)]
    positions, top = [], GAP
    for start in range(0, len(figure.panels), columns):
        row = slice(start, start + columns)
        top += HEADING if any(headings[row]) else 0.0
        positions += [Position(GAP + i * stride, top, heading) for i, heading in enumerate(headings[row])]
        top += max(panel.height for panel in figure.panels[row]) + GAP
    lines = -(-len(figure.legend) // _legend_columns(figure))
    return positions, columns * stride + GAP, top + (lines * LEGEND + GAP if lines else 0.0)


def _legend_columns(figure: Figure) -> int:
    columns = min(figure.columns, len(figure.panels))
    return columns + 1 if columns > 1 else 1


def _frame(figure: Figure, positions: Sequence[Position], width: float, height: float) -> Canvas:
    """Draw everything but the panels: background, headings, legend."""
    canvas = Canvas(figsize=(width, height))
    for position in positions:
        x, y = position.left / width, 1 - (position.top - 0.1) / height
        canvas.text(x, y, position.heading, fontsize=10.5, fontweight="bold")
    if figure.legend:
        handles = [Line2D([], [], label=label, **style.options()) for label, style in figure.legend]
        columns = min(_legend_columns(figure), len(handles))
        canvas.legend(handles=handles, loc="lower left", ncols=columns)
    return canvas


def _insert_svg(
    frame: str, figure: Figure, rendered: Sequence[RenderedPanel], positions: Sequence[Position]
) -> str:
    """Nest the SVGs of the panels in that of the frame."""
    nested = []
    for panel, size, position in zip(rendered, figure.panels, positions, strict=True):
        corner = f'x="{SVG_UNITS * position.left:.2f}" y="{SVG_UNITS * position.top:.2f}"'
        extent = f'width="{SVG_UNITS * size.width:.2f}" height="{SVG_UNITS * size.height:.2f}"'
        start = f'<svg {corner} {extent} font-family="DejaVu Sans, sans-serif" '
        nested.append(panel.svg.replace("<svg ", start, 1))
    end = frame.rindex("</svg>")
    return frame[:end] + "\n".join(nested) + frame[end:]
