"""Results as JSON has them."""

from typing import Any

import numpy as np

from byov_jax.evaluation import comparison
from byov_jax.images import shifts


def plain(tree: Any) -> Any:
    """Named tuples, arrays and numbers as dicts, lists and floats; what is not finite becomes None."""
    if hasattr(tree, "_asdict"):
        return plain(tree._asdict())
    if isinstance(tree, dict):
        return {name: plain(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    if hasattr(tree, "tolist"):
        return plain(tree.tolist())
    return None if isinstance(tree, float) and not np.isfinite(tree) else tree


def metrics(found: comparison.Measured) -> dict[str, Any]:
    """Every metric of a classifier, with its interval where it has one."""
    with_interval: dict[str, Any] = plain(found.intervals())
    others = ("uncertainty", "within_covariance", "entropy")
    return with_interval | {name: plain(getattr(found.report, name)) for name in others}


def gain(name: str, value: Any, replicates: Any, baseline: Any, baseline_replicates: Any) -> dict[str, Any]:
    """What a metric gains over a baseline, in percentage points, positive is better, with its interval."""
    return plain(comparison.advantage(value, replicates, baseline, baseline_replicates, name))


def gains(numbers: dict, arrays: dict, baseline: dict, baseline_arrays: dict, mode: str) -> dict[str, Any]:
    """Gains over the baseline's mean weights, from what `calibration` and `shift` kept of both runs.

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
        for name in comparison.BETTER
    }


def gains_under_shift(numbers: dict, arrays: dict, baseline: dict, baseline_arrays: dict, mode: str) -> dict:
    """The same for every shift and severity, whose replicates are [shifts, severities, resamples]."""
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
