"""The building blocks of figures: panels, cards, palette, lines, bands and axes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from byov_jax.report import formatting

WIDTH, HEIGHT = 4.2, 3.1
"""Default size of a panel in inches."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The colour-blind safe palette of Okabe and Ito without its yellow, which is too faint on white."""

LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")
INK, FAINT, GRID = "#222222", "#767676", "#e4e4e4"

Draw = Callable[[Axes], None]


class Style(NamedTuple):
    """The style of a line; two lines of a figure have at most one of the three in common."""

    colour: str
    line: str = "-"
    marker: str = ""

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of matplotlib."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


MEAN = Style(COLOURS[0], "-", "o")
DRAWS = Style(COLOURS[1], "--", "s")
BASELINE = Style("#555555", ":", "^")


class Panel(NamedTuple):
    """One set of axes.

    Attributes:
      title: above the axes.
      draw: draws the panel.
      group: heading that neighbouring panels share, for instance the name of a run.
      width: in inches.
      height: in inches.
    """

    title: str
    draw: Draw
    group: str = ""
    width: float = WIDTH
    height: float = HEIGHT


class Card(NamedTuple):
    """An image with a few lines of text.

    Attributes:
      group: heading that neighbouring cards share.
      png: the encoded image.
      lines: the text.
      correct: whether to mark it as right or as wrong.
    """

    group: str
    png: bytes
    lines: tuple[str, ...]
    correct: bool


class Figure(NamedTuple):
    """A figure of the report.

    Attributes:
      name: of its files and its anchor.
      kind: its topic in a word or two.
      title: the main result.
      caption: sentences: how it was computed, what the paper reports.
      panels: the axes.
      rows: the plotted numbers, as dicts.
      legend: labels and styles of the lines.
      cards: shown on the page instead of the panels.
      columns: number of panels side by side.
    """

    name: str
    kind: str
    title: str
    caption: tuple[str, ...]
    panels: tuple[Panel, ...]
    rows: tuple[dict[str, Any], ...]
    legend: tuple[tuple[str, Style], ...] = ()
    cards: tuple[Card, ...] = ()
    columns: int = 3


def line_style(index: int) -> Style:
    """Return the style of the i-th of many lines."""
    return Style(COLOURS[index % len(COLOURS)], LINES[index % len(LINES)], MARKERS[index % len(MARKERS)])


def line(axes: Axes, x: Any, y: Any, style: Style, *, points: bool = True, **options: Any) -> None:
    """Draw a line, with markers if `points`."""
    axes.plot(x, y, gid=data_id(axes), **style.options() | ({} if points else {"marker": ""}) | options)


def band(axes: Axes, x: Any, low: Any, high: Any, style: Style) -> None:
    """Fill the interval around a line."""
    axes.fill_between(x, low, high, color=style.colour, alpha=0.16, linewidth=0, gid=data_id(axes))


def data_id(axes: Axes) -> str:
    """Return an SVG id for the next artist in the axes that shows data."""
    count = sum(str(child.get_gid() or "").startswith("data-") for child in axes.get_children())
    return f"data-{count}"


def scale(axes: Axes, which: str = "xy", factor: float = 1.0) -> None:
    """Label the ticks of one or both axes with their value times `factor`: 100 for percentages."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.axis_name in which:
            axis.set_major_formatter(FuncFormatter(lambda value, _: formatting.tick(factor * value)))


def from_zero(axes: Axes) -> None:
    """Start the y axis at 0 and end it slightly above the data."""
    axes.set_ylim(0, 1.06 * axes.dataLim.y1 or 1.0)


def logarithmic(axes: Axes, values: Any, min_ratio: float = 20.0) -> None:
    """Make the y axis logarithmic if the values are positive and span a factor of `min_ratio` or more."""
    values = np.asarray(list(values), float)
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0 or values.max() < min_ratio * values.min():
        return
    axes.set_yscale("log")
    decades = np.log10(values.max() / values.min())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.tick(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
