"""The runs of a sweep: prior x beta x where x seed, each with its name and config."""

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from byov_jax.cli import flags
from byov_jax.errors import ConfigError
from byov_jax.methods import TRAITS
from byov_jax.training.config import Config

AXES = ("prior", "beta_start", "beta_end", "where", "seed")
"""The keys of a config that a sweep sets."""


_PRIORS = "standard,teacher_mean,teacher_moments"
GRIDS: dict[str, dict[str, Any]] = {
    "paper": {"prior": _PRIORS, "beta": "0.3,1,1:1", "where": "all", "baseline": True},
    "partial": {"prior": _PRIORS, "beta": "1,1:1", "where": "no_conv,linear_only", "baseline": True},
}
"""The paper's two ablations: prior x beta with everything Bayesian, and with parts of it deterministic."""


def explained() -> str:
    """Describe the grids for `--help`."""
    return "; ".join(
        f"{name} is "
        + " ".join(f"--{key}={value}" for key, value in axes.items() if value is not True)
        + " --baseline"
        for name, axes in GRIDS.items()
    )


class Beta(NamedTuple):
    """The weight of the KL at the first and at the last step."""

    start: float
    end: float


class Axes(NamedTuple):
    """The values to combine; an empty axis keeps the value of the config."""

    prior: Sequence[str] = ()
    beta: Sequence[Beta] = ()
    where: Sequence[str] = ()
    seed: Sequence[int] = ()


class Point(NamedTuple):
    """One run: the name of its directory, and its config."""

    name: str
    config: Config


def points(file: str, changes: Sequence[str], axes: Axes, *, baseline: bool = False) -> list[Point]:
    """Return every combination once, seeds together; then, with `baseline`, BYOL with every seed.

    Args:
      file: as in `flags.load_config`, with the variant that all combinations start from.
      changes: `KEY=VALUE`, applied to all of them.
      axes: the values to combine.
      baseline: also BYOL, as `flags.baseline` names it.
    """
    _check_changes(changes)
    base = flags.load_config(file, changes)
    if not base.traits.bayesian:
        bayesian = " or ".join(name for name, traits in TRAITS.items() if traits.bayesian)
        raise ConfigError(
            f"--config={file}: {base.method} has neither prior nor beta to sweep over: choose the variant "
            f"{bayesian}, and --baseline for byol beside it"
        )
    seeds = axes.seed or (base.seed,)
    found = [
        _point(file, changes, {"prior": prior, "beta_start": start, "beta_end": end, "where": where}, seed)
        for prior in axes.prior or (base.prior,)
        for start, end in axes.beta or (Beta(base.beta_start, base.beta_end),)
        for where in axes.where or (base.where,)
        for seed in seeds
    ]
    if baseline:
        other = flags.baseline(file)
        found += [_point(other, changes, {}, seed) for seed in seeds]
    return list({point.name: point for point in found}.values())


def betas(text: str) -> list[Beta]:
    """Parse values separated by commas: `0.3` is from 0 to 0.3, `1:1` from 1 to 1."""
    found = []
    for part in text.split(","):
        numbers = part.split(":")
        try:
            beta = Beta(*map(float, numbers)) if len(numbers) == 2 else Beta(0.0, float(part))
        except ValueError:
            beta = Beta(math.nan, math.nan)
        if not all(0.0 <= value < math.inf for value in beta):
            raise ValueError(f"--beta={part}: expected a number, 0 or more, or START:END")
        found.append(beta)
    return found


def seeds(text: str) -> list[int]:
    """Parse integers separated by commas."""
    found = text.split(",")
    for part in found:
        if not re.fullmatch(r"[0-9]{1,10}", part):
            raise ValueError(f"--seed={part}: expected integers, 0 or more, separated by commas")
    return [int(part) for part in found]


def _check_changes(changes: Sequence[str]) -> None:
    for change in changes:
        key = change.partition("=")[0]
        if key in AXES:
            flag = "beta" if key.startswith("beta") else key
            raise ValueError(f"--config.{change}: a sweep sets {key} itself, with --{flag}")


def _point(file: str, changes: Sequence[str], values: dict[str, Any], seed: int) -> Point:
    config = flags.load_config(file, [*changes, *(f"{key}={value}" for key, value in values.items())])
    words: list[str] = [config.method]
    if values:
        beta = f"beta{_number(config.beta_start)}to{_number(config.beta_end)}"
        words += [config.prior, beta, _word(config.where)]
    return Point("-".join([*words, f"seed{seed}"]), config.updated({"seed": seed}))


def _number(value: float) -> str:
    return f"{float(value)!r}".removesuffix(".0")


def _word(text: str) -> str:
    """Return the text if it can be part of a file name, else a readable part of it and a hash."""
    if re.fullmatch(r"\w{1,32}", text, re.ASCII):
        return text
    readable = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[:32]
    return f"{readable}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
