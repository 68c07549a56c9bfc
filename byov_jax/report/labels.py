"""What a run is called: its method, and whatever sets it apart from the other runs."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from byov_jax.report.runs import Run

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
"""Keys of a config that mean nothing to a method without a posterior."""

NO_MATTER = ("seed", "log_every", "monitor_every", "save_every")
"""Keys that do not make another setting: the seed, and what is written down when."""

SHOWN = ("prior", "where", "beta_start", "beta_end")


def setting(run: Run) -> str:
    """A key that two runs share if they differ in nothing that matters but their seed."""
    return json.dumps(_flat(run), sort_keys=True)


def method(run: Run) -> str:
    """As in `BYOV`."""
    return METHODS.get(run.method, run.method)


def prior(run: Run) -> str:
    """As in `N(0, I)`; empty without a posterior."""
    return PRIORS.get(run.config["prior"], str(run.config["prior"])) if run.bayesian else ""


def beta(run: Run) -> str:
    """As in `0→0.3`, or `1` if it is constant; empty without a posterior."""
    if not run.bayesian:
        return ""
    start, end = run.config["beta_start"], run.config["beta_end"]
    return f"{end:g}" if start == end else f"{start:g}→{end:g}"


def others(run: Run, runs: Sequence[Run]) -> str:
    """What else differs between the runs of this method: "steps=300, kl_norm=dataset"."""
    varying = _varying(run, runs)
    return ", ".join(f"{key}={_plain(_flat(run).get(key))}" for key in varying if key not in SHOWN)


def names(runs: Sequence[Run]) -> list[str]:
    """A name for each run: short, and no two the same."""
    found = [_name(run, runs) for run in runs]
    twice = {name for name in found if found.count(name) > 1}
    found = [
        f"{name} · {run.path.name}" if name in twice else name for name, run in zip(found, runs, strict=True)
    ]
    twice = {name for name in found if found.count(name) > 1}
    return [f"{name} ({run.path})" if name in twice else name for name, run in zip(found, runs, strict=True)]


def _name(run: Run, runs: Sequence[Run]) -> str:
    varying = _varying(run, runs)
    words = [method(run)]
    if "prior" in varying:
        words.append(prior(run))
    if "beta_start" in varying or "beta_end" in varying:
        words.append(f"β {beta(run)}")
    if "where" in varying:
        words.append(str(run.config["where"]))
    words.append(others(run, runs))
    if len({other.seed for other in runs if setting(other) == setting(run)}) > 1:
        words.append(f"seed {run.seed}")
    return " · ".join(filter(None, words))


def _varying(run: Run, runs: Sequence[Run]) -> list[str]:
    """The keys whose values differ between the runs of the same method."""
    configs = [_flat(other) for other in runs if other.method == run.method]
    keys = sorted({key for config in configs for key in config})
    return [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]


def _flat(run: Run) -> dict[str, Any]:
    """The config, sections as `optimizer.warmup`, without what does not matter."""
    left_out = (*NO_MATTER, *(() if run.bayesian else ONLY_BAYESIAN))
    return dict(_leaves({key: value for key, value in run.config.items() if key not in left_out}))


def _leaves(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, list(value) if isinstance(value, tuple) else value


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
