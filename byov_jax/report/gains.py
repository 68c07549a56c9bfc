"""What a run gains over the baseline: percentage points, positive is better, with bootstrap intervals.

Both runs are measured on the same images with the same resamples, so differences are taken resample by
resample; the baseline is taken at its mean weights.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from byov_jax.errors import RunError
from byov_jax.report.groups import BETTER
from byov_jax.report.runs import Run, number

SHIFTS = (
    "gaussian_noise",
    "salt_pepper",
    "shot",
    "speckle",
    "gaussian_blur",
    "contrast",
    "brightness",
    "pixelate",
    "shear",
    "rotate",
    "solarise",
    "posterise",
)
"""The order of the shifts in arrays."""

SEVERITIES = ("1", "2", "3", "4", "5")
TAILS = (0.025, 0.975)


class Interval(NamedTuple):
    """A value and its 95% interval; numbers, or arrays of one shape."""

    value: Any
    low: Any
    high: Any


class UnderShift(NamedTuple):
    """Gains under shift.

    Attributes:
      by_shift: mean over severities, one value for each of `SHIFTS`.
      by_severity: mean over shifts, one value for each severity.
      overall: mean over both.
    """

    by_shift: Interval
    by_severity: Interval
    overall: Interval


def comparable(run: Run, baseline: Run, part: str) -> bool:
    """Whether both have the part, on the same images with the same resamples."""
    mine, theirs = run.measured(part), baseline.measured(part)
    if not mine or not theirs or mine.get("images") != theirs.get("images"):
        return False
    settings = [of.settings.get(part, {}) for of in (run, baseline)]
    return all(settings[0].get(key) == settings[1].get(key) for key in ("data", "seed"))


def clean(run: Run, baseline: Run | None, mode: str, metric: str) -> Interval | None:
    """The gain on clean images: as evaluation.json has it, or from the resamples of both runs."""
    if baseline is None or baseline.path == run.path:
        return None
    with run.reading("the comparison with a baseline in its evaluation"):
        if Path(run.compared.get("run", "")).resolve() == baseline.path.resolve():
            recorded = run.compared["gain"].get("calibration", {}).get(mode, {}).get(metric)
            if recorded:
                return Interval(*(number(recorded[key]) for key in Interval._fields))
    if not comparable(run, baseline, "calibration"):
        return None
    with run.reading("part calibration of its evaluation"):
        mine = run.arrays("calibration", f"{mode}/replicates/{metric}").get(f"{mode}/replicates/{metric}")
        theirs = baseline.arrays("calibration", f"mean/replicates/{metric}").get(f"mean/replicates/{metric}")
        if mine is None or theirs is None:
            return None
        numbers, against = run.parts["calibration"][mode], baseline.parts["calibration"]["mean"]
        sign = 100.0 * BETTER[metric]
        value = sign * (number(numbers[metric]["value"]) - number(against[metric]["value"]))
        return _interval(value, sign * (mine - theirs))


def under_shift(run: Run, baseline: Run | None, mode: str, metric: str) -> UnderShift | None:
    """The gains under all shifts; None if one of both was not measured, or not in the same way."""
    if baseline is None or baseline.path == run.path or not comparable(run, baseline, "shift"):
        return None
    mine, theirs = _shifted(run, mode, metric), _shifted(baseline, "mean", metric)
    if mine is None or theirs is None or mine[1].shape != theirs[1].shape:
        return None
    sign = 100.0 * BETTER[metric]
    value, replicates = (sign * (a - b) for a, b in zip(mine, theirs, strict=True))
    return UnderShift(*(_interval(value.mean(axis), replicates.mean(axis)) for axis in (1, 0, (0, 1))))


def _shifted(run: Run, mode: str, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """A metric [shifts, severities] and its replicates [shifts, severities, resamples]."""
    replicates = run.arrays("shift", f"{mode}/replicates/{metric}").get(f"{mode}/replicates/{metric}")
    if replicates is None:
        return None
    if replicates.ndim != 3 or replicates.shape[:2] != (len(SHIFTS), len(SEVERITIES)):
        raise RunError(
            f"{run.path}: the resamples of part shift are {replicates.shape}, not [12, 5, resamples]"
        )
    with run.reading("part shift of its evaluation"):
        numbers = run.parts["shift"]
        rows = [[numbers[name][s][mode][metric]["value"] for s in SEVERITIES] for name in SHIFTS]
        return np.asarray(rows, float), replicates.astype(float)


def _interval(value: Any, replicates: np.ndarray) -> Interval:
    low, high = np.quantile(replicates.astype(float), TAILS, axis=-1)
    return Interval(value, low, high)
