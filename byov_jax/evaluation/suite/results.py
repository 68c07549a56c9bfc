"""The results of an evaluation: those of a part, evaluation.json, and gains over a baseline."""

from typing import Any, NamedTuple, TypedDict

import numpy as np

from byov_jax.evaluation import bootstrap
from byov_jax.images import shifts

Numbers = dict[str, Any]
"""JSON values."""


RENAMED_SHIFTS = {"posterise": "posterize", "solarise": "solarize"}
"""Names of shifts by those that they had until 0.1."""


class Result(NamedTuple):
    """The numbers of a part, for evaluation.json, and the arrays behind its figures."""

    numbers: Numbers
    arrays: dict[str, Any]


class Baseline(TypedDict):
    """What a run gains over a baseline, in percentage points, and the baseline's pruning curve."""

    run: str
    method: str
    gain: dict[str, dict[str, Numbers]]
    pruning: Numbers | None


class EvaluationResult(TypedDict):
    """The contents of evaluation.json: numbers and settings of every part that was measured."""

    run: Numbers
    parts: dict[str, Numbers]
    settings: dict[str, Numbers]
    missing: list[str]
    baseline: Baseline | None


def with_present_names(numbers: Numbers) -> Numbers:
    """Return the numbers of a part of any version with the present names of shifts."""
    return {RENAMED_SHIFTS.get(name, name): value for name, value in numbers.items()}


def plain(tree: Any) -> Any:
    """Convert named tuples, arrays and numbers to JSON values; NaN and infinity become None."""
    if hasattr(tree, "_asdict"):
        return plain(tree._asdict())
    if isinstance(tree, dict):
        return {name: plain(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    if hasattr(tree, "tolist"):
        return plain(tree.tolist())
    return None if isinstance(tree, float) and not np.isfinite(tree) else tree


def metrics(found: bootstrap.BootstrappedReport) -> dict[str, Any]:
    """Return every metric of a classifier, with its interval where it has one."""
    with_interval: dict[str, Any] = plain(found.intervals())
    others = ("uncertainty", "within_covariance", "entropy")
    return with_interval | {name: plain(getattr(found.report, name)) for name in others}


def gain(name: str, value: Any, replicates: Any, baseline: Any, baseline_replicates: Any) -> dict[str, Any]:
    """Return the gain in a metric, in percentage points, positive is better, with its interval."""
    return plain(bootstrap.gain(value, replicates, baseline, baseline_replicates, name))


def gains(numbers: dict, arrays: dict, baseline: dict, baseline_arrays: dict, mode: str) -> dict[str, Any]:
    """Return gains over the baseline's mean weights, from the results of `calibration` and `shift` of both.

    Args:
      numbers: metrics, `{mode: {name: {"value": ...}}}`.
      arrays: their replicates, by `mode/replicates/name`.
      baseline: as `numbers`.
      baseline_arrays: as `arrays`.
      mode: "mean" or "mc", of the run; a baseline is taken at its mean.
    """
    return {
        name: gain(
            name,
            numbers[mode][name]["value"],
            arrays[f"{mode}/replicates/{name}"],
            baseline["mean"][name]["value"],
            baseline_arrays[f"mean/replicates/{name}"],
        )
        for name in bootstrap.BETTER
    }


def gains_under_shift(numbers: dict, arrays: dict, baseline: dict, baseline_arrays: dict, mode: str) -> dict:
    """Return `gains` for every shift and severity; replicates are [shifts, severities, resamples]."""
    found: dict[str, dict[str, Any]] = {}
    for row, name in enumerate(shifts.NAMES):
        found[name] = {}
        for column, severity in enumerate(("1", "2", "3", "4", "5")):
            mine, theirs = (
                {k: a[row, column] for k, a in kept.items()} for kept in (arrays, baseline_arrays)
            )
            found[name][severity] = gains(
                numbers[name][severity], mine, baseline[name][severity], theirs, mode
            )
    return found
