"""Panels drawn: as SVG for the page, and in pixels."""

import io
import re
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from PIL import Image

from byov_jax.report.draw import FAINT, GRID, INK, Figure, Panel

DOTS = 150
MOST_TICKS = 6
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


class Drawing(NamedTuple):
    """A panel, drawn.

    Attributes:
      svg: for a page, where it can stand beside others: no id of it is used elsewhere.
      picture: the same in pixels, `DOTS` to the inch, transparent.
    """

    svg: str
    picture: Image.Image


def drawings(figure: Figure) -> list[Drawing]:
    """Draws every panel, once."""
    return [_drawing(panel, f"{figure.name}-{index}") for index, panel in enumerate(figure.panels)]


def _drawing(panel: Panel, name: str) -> Drawing:
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": name}):
        canvas = Canvas(figsize=(panel.width, panel.height), facecolor="none")
        FigureCanvasAgg(canvas)  # measures text; without it each measurement would set up SVG
        axes = canvas.subplots()
        panel.draw(axes)
        axes.set_title(panel.title)
        for axis in (axes.xaxis, axes.yaxis):
            locator = axis.get_major_locator()
            if isinstance(locator, MaxNLocator):
                locator.set_params(nbins=MOST_TICKS)
        canvas.tight_layout(pad=0.3)
        return Drawing(_for_page(svg(canvas), name), picture(canvas))


def svg(canvas: Canvas) -> str:
    """As an SVG file that does not depend on the time."""
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, dpi=DOTS)
    return text.getvalue()


def picture(canvas: Canvas) -> Image.Image:
    """In pixels, with transparency."""
    canvas.set_dpi(DOTS)
    agg = FigureCanvasAgg(canvas)
    agg.draw()
    return Image.fromarray(np.asarray(agg.buffer_rgba()))


def _for_page(text: str, name: str) -> str:
    """Without what a page has already, with the page's font, with ids that begin with `name`."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)

    def tag(found: re.Match) -> str:
        inside = re.sub(r"\s+", " ", found.group())
        inside = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", inside)
        inside = re.sub(r"font-family: [^;\"]*;? ?", "", inside)
        inside = re.sub(r' transform="rotate\(-0 [^"]*"', "", inside)
        return inside if "base64" in inside else re.sub(r"(\d\.\d\d)\d+", r"\1", inside)

    text = re.sub(r">\s+<", "><", re.sub(r"<[^>]*>", tag, text))
    return re.sub(r'^<svg[^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 aria-hidden="true">', text)
