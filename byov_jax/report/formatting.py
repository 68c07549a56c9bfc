"""Numbers as people read them."""

import math

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "?"
TIMES = "\N{MULTIPLICATION SIGN}"
SIGMA = "\N{GREEK SMALL LETTER SIGMA}"


def percent(value: float, digits: int = 1) -> str:
    """0.7123 -> "71.2%"."""
    return f"{fixed(100 * value, digits)}%"


def fixed(value: float, digits: int = 1) -> str:
    """-0.25 -> "−0.2", with a minus sign and not a hyphen, and no minus before a zero."""
    if not math.isfinite(value):
        return UNKNOWN
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def signed(value: float, digits: int = 2) -> str:
    """2.831 -> "+2.83"; what rounds to zero has no sign."""
    text = fixed(value, digits)
    return text if text.startswith((MINUS, UNKNOWN)) or float(text) == 0 else f"+{text}"


def tick(value: float) -> str:
    """As on an axis: no digits that say nothing."""
    return f"{float(f'{value:.10g}'):g}".replace("e-0", "e-").replace("-", MINUS)


def short(value: float) -> str:
    """Three significant digits, whatever the size: 0.00674, 16.3, 1.2e-7."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("-", MINUS)


def change(first: str, last: str) -> str:
    """How a number that is already text moved."""
    return f"stayed at {last}" if first == last else f"went from {first} to {last}"


def interval(low: float, high: float, digits: int = 1, factor: float = 1.0) -> str:
    """The two ends, "[70.1, 72.3]"."""
    return f"[{fixed(factor * low, digits)}, {fixed(factor * high, digits)}]"


def listing(words: list[str]) -> str:
    """["a", "b", "c"] -> "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""
