"""Format numbers, lists and tables as text."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "?"
TIMES = "\N{MULTIPLICATION SIGN}"
SIGMA = "\N{GREEK SMALL LETTER SIGMA}"


def percent(value: float, digits: int = 1) -> str:
    """0.7123 -> "71.2%"."""
    return f"{fixed(100 * value, digits)}%"


def fixed(value: float, digits: int = 1) -> str:
    """-0.25 -> "−0.2", with a minus sign instead of a hyphen; zero has no sign, NaN is "?"."""
    if not math.isfinite(value):
        return UNKNOWN
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def signed(value: float, digits: int = 2) -> str:
    """2.831 -> "+2.83"; a value that rounds to zero has no sign."""
    text = fixed(value, digits)
    return text if text.startswith((MINUS, UNKNOWN)) or float(text) == 0 else f"+{text}"


def tick(value: float) -> str:
    """0.30000000000000004 -> "0.3", for the ticks of an axis."""
    return f"{float(f'{value:.10g}'):g}".replace("e-0", "e-").replace("-", MINUS)


def short(value: float) -> str:
    """Three significant digits at any magnitude: 0.00674, 16.3, 1.2e-7."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("-", MINUS)


def change(first: str, last: str) -> str:
    """("1", "2") -> "went from 1 to 2"."""
    return f"stayed at {last}" if first == last else f"went from {first} to {last}"


def interval(low: float, high: float, digits: int = 1) -> str:
    """(70.1, 72.3) -> "[70.1, 72.3]"."""
    return f"[{fixed(low, digits)}, {fixed(high, digits)}]"


def plural(count: int, noun: str) -> str:
    """(2, "run") -> "2 runs"."""
    return f"{count} {noun}{'s' if count > 1 else ''}"


def listing(items: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b and c"."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""


def csv_text(rows: Iterable[dict[str, Any]]) -> str:
    """Format dicts as CSV; the columns are the union of all keys, None is empty."""
    rows = list(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
