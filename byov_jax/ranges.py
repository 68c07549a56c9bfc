"""The allowed values of the hyper-parameters, for the library and for configs alike."""

import math
import numbers
from typing import Any, NamedTuple

import jax


class Range(NamedTuple):
    """An interval of numbers.

    Attributes:
      ge: least value.
      gt: excluded lower bound.
      le: greatest value.
      lt: excluded upper bound.
      integer: whether only integers are allowed.
      off: a value outside the interval that is allowed as well, and switches something off.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    integer: bool = False
    off: float | None = None

    def bounds(self) -> dict[str, float]:
        """Return the bounds that are set, the value `off` included, as pydantic's `Field` takes them."""
        if self.off is not None:
            return {"ge": self.off}
        return {name: value for name, value in self._asdict().items() if name in BOUNDS and value is not None}

    def refusal(self, value: Any) -> str:
        """Return what is allowed, such as "at least 1", if a value is out of range; empty if it is not."""
        kind = numbers.Integral if self.integer else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(float(value)):
            return "an integer" if self.integer else "a finite number"
        value = float(value)
        below = (self.ge is not None and value < self.ge) or (self.gt is not None and value <= self.gt)
        above = (self.le is not None and value > self.le) or (self.lt is not None and value >= self.lt)
        if value == self.off or not (below or above):
            return ""
        limits = describe(self.ge, self.gt, self.le, self.lt)
        return limits if self.off is None else f"{limits}, or {self.off:g} for none"


BOUNDS = ("ge", "gt", "le", "lt")

RANGES = {
    "accumulate": Range(ge=1, integer=True),
    "b1": Range(ge=0, lt=1),
    "b2": Range(ge=0, lt=1),
    "batch": Range(ge=1, integer=True),
    "beta": Range(ge=0),
    "chunk": Range(ge=1, integer=True),
    "classes": Range(ge=0, integer=True),
    "clip_norm": Range(gt=0),
    "dataset_size": Range(ge=1, integer=True),
    "draws": Range(ge=1, integer=True),
    "eps": Range(gt=0),
    "floor": Range(gt=0),
    "learning_rate": Range(gt=0),
    "log_var": Range(ge=-100, le=0),
    "momentum": Range(ge=0, lt=1),
    "prior_mean": Range(),
    "prior_std": Range(gt=0),
    "spike": Range(ge=1, off=0),
    "tau": Range(ge=0, le=1),
    "trust_coefficient": Range(gt=0),
    "weight_decay": Range(ge=0),
}


def check(**values: Any) -> None:
    """Raise a ValueError that names the first value out of its range.

    Schedules are not evaluated, and nothing is known of values inside jit.
    """
    for name, value in values.items():
        known = not (callable(value) or isinstance(value, jax.core.Tracer))
        scalar = isinstance(value, jax.Array) and value.ndim == 0
        refusal = RANGES[name].refusal(value.item() if scalar and known else value) if known else ""
        if refusal:
            raise ValueError(f"{name}={value!r} must be {refusal}")


def describe(
    ge: float | None = None, gt: float | None = None, le: float | None = None, lt: float | None = None
) -> str:
    """Return an interval in words: "in [0, 1]", "positive", "at least 1", "0 or more"."""
    low, high = (ge if ge is not None else gt), (le if le is not None else lt)
    if low is not None and high is not None:
        opening, closing = "[" if ge is not None else "(", "]" if le is not None else ")"
        return f"in {opening}{low}, {'2**32' if high == 2**32 else high}{closing}"
    if gt is not None:
        return "positive"
    return "" if low is None else "at least 1" if low == 1 else f"{low} or more"
