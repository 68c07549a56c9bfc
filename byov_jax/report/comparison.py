"""The runs of a report, and the one among them that is the baseline."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from byov_jax.errors import RunError
from byov_jax.report import labels, runs
from byov_jax.report.runs import Run

MAX_SETTINGS = 12


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs that are reported together. A setting is a config without its seed, see `labels.setting`.

    Attributes:
      runs: all runs, in the order given.
      baseline: the run that differences refer to; not necessarily one of `runs`.
    """

    runs: tuple[Run, ...]
    baseline: Run | None

    @property
    def settings(self) -> list[str]:
        """The distinct settings, in order of appearance."""
        return list(dict.fromkeys(labels.setting(run) for run in self.runs))

    @property
    def featured(self) -> list[Run]:
        """The run with the lowest seed of each of the first `MAX_SETTINGS` settings, BYOV runs first."""
        lowest: dict[str, Run] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            lowest.setdefault(labels.setting(run), run)
        featured = [lowest[setting] for setting in self.settings[:MAX_SETTINGS]]
        return sorted(featured, key=lambda run: not run.is_byov)

    @property
    def contenders(self) -> list[Run]:
        """The featured runs without the setting of the baseline."""
        excluded = labels.setting(self.baseline) if self.baseline else None
        return [run for run in self.featured if labels.setting(run) != excluded]

    @property
    def is_sweep(self) -> bool:
        """Whether a setting has several seeds, or a Bayesian method several settings."""
        bayesian = [run for run in self.runs if run.traits.bayesian]
        distinct = {(run.method, labels.setting(run)) for run in bayesian}
        several_settings = len(distinct) > len({run.method for run in bayesian})
        return several_settings or len(self.runs) > len(self.settings)


def read_runs(paths: Sequence[Path], baseline: Path | None = None) -> Comparison:
    """Read the runs in `paths`, run directories or folders of them, each run once, and name them."""
    unique: dict[Path, Path] = {}
    for path in paths:
        for run_path in runs.find(path):
            unique.setdefault(run_path.resolve(), run_path)
    if not unique:
        raise RunError("a report needs at least one run directory")
    loaded = [runs.read(path) for path in unique.values()]
    if baseline is not None and baseline.resolve() not in unique:
        loaded.append(runs.read(baseline))
    names = labels.names(loaded)
    loaded = [dataclasses.replace(run, name=name) for run, name in zip(loaded, names, strict=True)]
    return Comparison(tuple(loaded[: len(unique)]), _baseline(loaded, baseline))


def _baseline(loaded: list[Run], path: Path | None) -> Run | None:
    if path is None:
        return runs.first_byol(loaded)
    return next(run for run in loaded if run.path.resolve() == path.resolve())
