"""The runs of a report: read, named, one of them the baseline."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from byov_jax.errors import RunError
from byov_jax.report import labels, runs
from byov_jax.report.runs import Run

MOST_SETTINGS = 12


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs that are looked at together.

    Attributes:
      runs: all of them, in the order in which they were given.
      baseline: the one that differences are taken to; it may be none of them.
    """

    runs: tuple[Run, ...]
    baseline: Run | None

    @property
    def settings(self) -> list[str]:
        """The different settings, `names.setting`, in order of appearance."""
        return list(dict.fromkeys(labels.setting(run) for run in self.runs))

    @property
    def featured(self) -> list[Run]:
        """One run of every setting, that of the lowest seed, BYOV first; of very many settings the first."""
        found: dict[str, Run] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            found.setdefault(labels.setting(run), run)
        chosen = [found[setting] for setting in self.settings[:MOST_SETTINGS]]
        return sorted(chosen, key=lambda run: run.method != "byov")

    @property
    def contenders(self) -> list[Run]:
        """The featured runs but the baseline and its other seeds."""
        against = labels.setting(self.baseline) if self.baseline else None
        return [run for run in self.featured if labels.setting(run) != against]

    @property
    def is_sweep(self) -> bool:
        """Whether a setting has several seeds, or a Bayesian method several settings."""
        bayesian = [run for run in self.runs if run.bayesian]
        distinct = {(run.method, labels.setting(run)) for run in bayesian}
        several = len(distinct) > len({run.method for run in bayesian})
        return several or len(self.runs) > len(self.settings)


def read(places: Sequence[Path], baseline: Path | None = None) -> Comparison:
    """Reads the runs in `places`, run directories or folders of them, each run once."""
    paths: dict[Path, Path] = {}
    for place in places:
        for path in runs.find(place):
            paths.setdefault(path.resolve(), path)
    if not paths:
        raise RunError("a report needs at least one run directory")
    found = [runs.read(path) for path in paths.values()]
    own = len(found)
    if baseline is not None and baseline.resolve() not in paths:
        found.append(runs.read(baseline))
    called = labels.names(found)
    found = [dataclasses.replace(run, name=name) for run, name in zip(found, called, strict=True)]
    return Comparison(tuple(found[:own]), _baseline(found, baseline))


def _baseline(found: list[Run], baseline: Path | None) -> Run | None:
    if baseline is None:
        return next((run for run in found if run.method == "byol"), None)
    return next(run for run in found if run.path.resolve() == baseline.resolve())
