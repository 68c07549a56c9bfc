"""Gains over the baseline with bootstrap intervals, in percentage points; positive is better.

Both runs are measured on the same images with the same resamples, so that differences are taken resample by
resample. The baseline predicts with its mean weights.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from byov_jax.errors import RunError
from byov_jax.evaluation.bootstrap import BETTER
from byov_jax.images import shifts
from byov_jax.report.runs import Run, number

SEVERITIES = ("1", "2", "3", "4", "5")
TAILS = (0.025, 0.975)


class Interval(NamedTuple):
    """A value and its 95% interval; numbers, or arrays of one shape."""

    value: Any
    low: Any
    high: Any

    @classmethod
    def from_json(cls, numbers: dict[str, Any], factor: float = 1.0) -> "Interval":
        """Read the value and the ends of the interval of one metric, times `factor`."""
        return cls(*(factor * number(numbers[key]) for key in cls._fields))


NO_INTERVAL = Interval(math.nan, math.nan, math.nan)


class GainsUnderShift(NamedTuple):
    """Gains under distribution shift.

    Attributes:
      by_shift: mean over severities, one value for each of `shifts.NAMES`.
      by_severity: mean over shifts, one value for each severity.
      overall: mean over both.
    """

    by_shift: Interval
    by_severity: Interval
    overall: Interval


def comparable(run: Run, baseline: Run, part: str) -> bool:
    """Whether both runs have the part, measured on the same images with the same resamples."""
    numbers, baseline_numbers = run.measured(part), baseline.measured(part)
    if not numbers or not baseline_numbers or numbers.get("images") != baseline_numbers.get("images"):
        return False
    settings, baseline_settings = (of.settings.get(part, {}) for of in (run, baseline))
    return all(settings.get(key) == baseline_settings.get(key) for key in ("data", "seed"))


def clean(run: Run, baseline: Run | None, mode: str, metric: str) -> Interval | None:
    """Return the gain on clean images, as recorded in evaluation.json or from the resamples of both runs."""
    if baseline is None or baseline.path == run.path:
        return None
    with run.parsing("the comparison with a baseline in its evaluation"):
        if Path(run.compared.get("run", "")).resolve() == baseline.path.resolve():
            recorded = run.compared["gain"].get("calibration", {}).get(mode, {}).get(metric)
            if recorded:
                return Interval.from_json(recorded)
    if not comparable(run, baseline, "calibration"):
        return None
    with run.parsing("part calibration of its evaluation"):
        replicates = _replicates(run, "calibration", mode, metric)
        baseline_replicates = _replicates(baseline, "calibration", "mean", metric)
        if replicates is None or baseline_replicates is None:
            return None
        numbers, baseline_numbers = run.parts["calibration"][mode], baseline.parts["calibration"]["mean"]
        sign = 100.0 * BETTER[metric]
        value = sign * (number(numbers[metric]["value"]) - number(baseline_numbers[metric]["value"]))
        return _interval(value, sign * (replicates - baseline_replicates))


def under_shift(run: Run, baseline: Run | None, mode: str, metric: str) -> GainsUnderShift | None:
    """Return the gains under all shifts; None if the shift parts are missing or not comparable."""
    if baseline is None or baseline.path == run.path or not comparable(run, baseline, "shift"):
        return None
    ours, theirs = _shifted(run, mode, metric), _shifted(baseline, "mean", metric)
    if ours is None or theirs is None or ours[1].shape != theirs[1].shape:
        return None
    sign = 100.0 * BETTER[metric]
    value, replicates = (sign * (a - b) for a, b in zip(ours, theirs, strict=True))
    return GainsUnderShift(*(_interval(value.mean(axis), replicates.mean(axis)) for axis in (1, 0, (0, 1))))


def _shifted(run: Run, mode: str, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a metric [shifts, severities] and its replicates [shifts, severities, resamples]."""
    replicates = _replicates(run, "shift", mode, metric)
    if replicates is None:
        return None
    if replicates.ndim != 3 or replicates.shape[:2] != (len(shifts.NAMES), len(SEVERITIES)):
        raise RunError(
            f"{run.path}: the resamples of part shift are {replicates.shape}, not [12, 5, resamples]"
        )
    with run.parsing("part shift of its evaluation"):
        numbers = run.parts["shift"]
        rows = [[numbers[name][s][mode][metric]["value"] for s in SEVERITIES] for name in shifts.NAMES]
        return np.asarray(rows, float), replicates.astype(float)


def _replicates(run: Run, part: str, mode: str, metric: str) -> np.ndarray | None:
    name = f"{mode}/replicates/{metric}"
    return run.arrays(part, name).get(name)


def _interval(value: Any, replicates: np.ndarray) -> Interval:
    low, high = np.quantile(replicates.astype(float), TAILS, axis=-1)
    return Interval(value, low, high)
