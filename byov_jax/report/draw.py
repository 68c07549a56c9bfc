"""What figures are made of: panels, a palette, lines, bands and axes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from byov_jax.report import formatting

WIDTH, HEIGHT = 4.2, 3.1
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind people tell apart; without the yellow, which white swallows."""

LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")
INK, FAINT, GRID = "#222222", "#767676", "#e4e4e4"


class Style(NamedTuple):
    """How a line looks; no two of a figure share more than one of the three."""

    colour: str
    line: str = "-"
    marker: str = ""

    def options(self) -> dict[str, Any]:
        """As matplotlib calls them."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


MEAN = Style(COLOURS[0], "-", "o")
DRAWS = Style(COLOURS[1], "--", "s")
BASELINE = Style("#555555", ":", "^")


class Panel(NamedTuple):
    """One set of axes.

    Attributes:
      title: what is in it, above the axes.
      draw: draws it.
      group: what it belongs to, the name of a run for instance; panels of a group stand together.
      width: in inches.
      height: in inches.
    """

    title: str
    draw: Callable[[Axes], None]
    group: str = ""
    width: float = WIDTH
    height: float = HEIGHT


class Card(NamedTuple):
    """A picture with a few words.

    Attributes:
      group: what it belongs to.
      picture: PNG.
      words: lines of text.
      good: whether to mark it as right or as wrong.
    """

    group: str
    picture: bytes
    words: tuple[str, ...]
    good: bool


class Figure(NamedTuple):
    """A figure of the report.

    Attributes:
      name: of its files and its anchor.
      kind: what it is about, in a word or two.
      title: what is seen.
      caption: sentences: how it was computed, what the paper saw.
      panels: the drawing.
      rows: the numbers, as dicts.
      legend: what the lines mean.
      cards: pictures that the page shows instead of the panels.
      columns: how many panels stand side by side.
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


def style(index: int) -> Style:
    """The style of the i-th of many lines."""
    return Style(COLOURS[index % len(COLOURS)], LINES[index % len(LINES)], MARKERS[index % len(MARKERS)])


def line(axes: Axes, x: Any, y: Any, look: Style, *, points: bool = True, **options: Any) -> None:
    """A line through data."""
    given = look.options() | ({} if points else {"marker": ""}) | options
    axes.plot(x, y, gid=data(axes), **given)


def band(axes: Axes, x: Any, low: Any, high: Any, look: Style) -> None:
    """The interval around a line."""
    axes.fill_between(x, low, high, color=look.colour, alpha=0.16, linewidth=0, gid=data(axes))


def data(axes: Axes) -> str:
    """An id for the next thing in the axes that shows data."""
    count = sum(str(child.get_gid() or "").startswith("data-") for child in axes.get_children())
    return f"data-{count}"


def scale(axes: Axes, which: str = "xy", factor: float = 1.0) -> None:
    """Labels the ticks of one or both axes with `factor` times their place: 100 for a share in percent."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.axis_name in which:
            axis.set_major_formatter(FuncFormatter(lambda value, _: formatting.tick(factor * value)))


def from_zero(axes: Axes) -> None:
    """Lets y begin at 0 and end a little above the data."""
    axes.set_ylim(0, 1.06 * axes.dataLim.y1 or 1.0)


def logarithmic(axes: Axes, which: str = "y", values: Any = (), least: float = 20.0) -> None:
    """A logarithmic axis if the values are positive and span more than a factor of `least`."""
    values = np.asarray(list(values), float)
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0 or values.max() < least * values.min():
        return
    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    axis = axes.yaxis if which == "y" else axes.xaxis
    decades = np.log10(values.max() / values.min())
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: formatting.tick(value)))
    axis.set_minor_formatter(NullFormatter())
