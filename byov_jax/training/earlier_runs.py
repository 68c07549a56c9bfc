"""Read the runs of earlier versions: their weights can be evaluated, their trainings not be continued."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byov_jax.errors import RunError
from byov_jax.methods import TRAITS

RESUMABLE = (0, 2)
"""The first version whose optimizer states this version reads."""

HEADS = ("projector", "predictor")


def upgraded(values: Any) -> Any:
    """Return the config of a run of any version with the keys of this one."""
    return _with_variance(_with_output_bias(values)) if isinstance(values, Mapping) else values


def _with_output_bias(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Until 0.1 the last Dense of the heads had a bias."""
    heads = {name: values[name] for name in HEADS if isinstance(values.get(name), Mapping)}
    return {**values, **{name: {"output_bias": True, **head} for name, head in heads.items()}}


def _with_variance(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Until 0.1 log_var's rate was a multiple of the means', and Bayesian kernels had their own decay."""
    given = values.get("optimizer")
    if not isinstance(given, Mapping) or "variance" in values:
        return values
    optimizer = dict(given)
    multiplier = optimizer.pop("log_var_multiplier", 1.0)
    bayesian_decay = optimizer.pop("bayesian_weight_decay", 0.0)
    if "method" in values and values["method"] in TRAITS and TRAITS[values["method"]].bayesian:
        optimizer["weight_decay"] = bayesian_decay
    rate = {"learning_rate": multiplier * optimizer["learning_rate"]} if "learning_rate" in optimizer else {}
    moments = {name: optimizer[name] for name in ("b1", "b2") if name in optimizer}
    return {**values, "optimizer": optimizer, "variance": rate | moments}


def check_resumable(run: Path, metadata: Mapping[str, Any]) -> None:
    """Raise a RunError if a run's states were saved by a version whose optimizer states cannot be read."""
    version = str(metadata.get("byov_jax", ""))
    numbers = [int(part) for part in version.split(".")[:2] if part.isdecimal()]
    if len(numbers) == 2 and tuple(numbers) < RESUMABLE:
        raise RunError(
            f"{run} was trained by byov_jax {version}: this version evaluates it, but cannot continue its "
            "training; train anew in another --workdir"
        )
