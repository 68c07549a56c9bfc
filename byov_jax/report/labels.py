"""Labels of runs: the method, and the config keys that distinguish a run from the others."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from byov_jax.report.runs import Run
from byov_jax.training import schema
from byov_jax.training.config import Config

METHODS = {"byol": "BYOL", "byov": "BYOV", "supervised": "supervised", "supervised_bbb": "supervised BBB"}
PRIORS = {"standard": "N(0, I)", "teacher_mean": "N(μ_T, I)", "teacher_moments": "N(μ_T, Σ_T)"}
ONLY_BAYESIAN = (
    "prior",
    "where",
    "log_var",
    "beta_start",
    "beta_end",
    "beta_steps",
    "kl_norm",
    "draws",
    "draw_per_view",
)
"""Config keys without effect on a method without a posterior."""

IGNORED = {"seed", "log_every", "monitor_every"} | {key.name for key in schema.keys(Config) if key.may_change}
"""Config keys that do not make a different setting: the seed, how often something is logged, and keys that
affect neither what is learned nor what is logged."""

NAMED = ("prior", "where", "beta_start", "beta_end")
"""Config keys with a place of their own in names and tables."""


def setting(run: Run) -> str:
    """Return a key that is equal for two runs whose configs differ in ignored keys at most."""
    return json.dumps(_flat(run), sort_keys=True)


def method(run: Run) -> str:
    """Format the method: `BYOV`."""
    return METHODS.get(run.method, run.method)


def prior(run: Run) -> str:
    """Format the prior: `N(0, I)`; empty without a posterior."""
    return PRIORS.get(run.config["prior"], str(run.config["prior"])) if run.traits.bayesian else ""


def beta(run: Run) -> str:
    """Format beta: `0→0.3`, or `1` if it is constant; empty without a posterior."""
    if not run.traits.bayesian:
        return ""
    start, end = run.config["beta_start"], run.config["beta_end"]
    return f"{end:g}" if start == end else f"{start:g}→{end:g}"


def others(run: Run, runs: Sequence[Run]) -> str:
    """Format the other keys that differ between the runs of this method: `steps=300, kl_norm=dataset`."""
    config = _flat(run)
    keys = [key for key in _varying(run, runs) if key not in NAMED]
    return ", ".join(f"{key}={_plain(config.get(key))}" for key in keys)


def names(runs: Sequence[Run]) -> list[str]:
    """Return a short, unique name for each run."""
    result = [_name(run, runs) for run in runs]
    for suffix in (" · {path.name}", " ({path})"):
        ambiguous = {name for name in result if result.count(name) > 1}
        result = [
            name + suffix.format(path=run.path) if name in ambiguous else name
            for name, run in zip(result, runs, strict=True)
        ]
    return result


def _name(run: Run, runs: Sequence[Run]) -> str:
    varying = _varying(run, runs)
    parts = [method(run)]
    if "prior" in varying:
        parts.append(prior(run))
    if "beta_start" in varying or "beta_end" in varying:
        parts.append(f"β {beta(run)}")
    if "where" in varying:
        parts.append(str(run.config["where"]))
    parts.append(others(run, runs))
    if len({other.seed for other in runs if setting(other) == setting(run)}) > 1:
        parts.append(f"seed {run.seed}")
    return " · ".join(filter(None, parts))


def _varying(run: Run, runs: Sequence[Run]) -> list[str]:
    """Return the keys whose values differ between the runs of the same method."""
    configs = [_flat(other) for other in runs if other.method == run.method]
    keys = sorted({key for config in configs for key in config})
    return [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]


def _flat(run: Run) -> dict[str, Any]:
    """Flatten the config, sections as `optimizer.warmup`, without keys that make no different setting."""
    excluded = IGNORED if run.traits.bayesian else IGNORED.union(ONLY_BAYESIAN)
    return {key: value for key, value in _leaves(run.config) if key not in excluded}


def _leaves(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, list(value) if isinstance(value, tuple) else value


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
