"""List what a report lacks because it was not measured, with the command that measures it."""

import shlex
from typing import NamedTuple

from byov_jax.report import gains
from byov_jax.report.comparison import Comparison
from byov_jax.report.figures.examples import selected
from byov_jax.report.formatting import SIGMA
from byov_jax.report.runs import Run
from byov_jax.training import run_directory
from byov_jax.training.run_directory import METRICS, POSTERIOR

ALL_RUNS = ("probe", "calibration")
FEATURED_RUNS = ("shift", "pruning")
FEATURED_BAYESIAN_RUNS = ("convergence", "latent")
"""The parts that the report expects of the three kinds of runs."""


class Missing(NamedTuple):
    """One entry of the list.

    Attributes:
      what: what is missing, of which run.
      how: the text before the command, or the whole explanation.
      command: measures it; empty if there is no such command.
    """

    what: str
    how: str
    command: str = ""


def unmeasured(comparison: Comparison) -> list[Missing]:
    """Return everything that is missing, run by run."""
    entries = []
    if comparison.baseline is None:
        entries.append(Missing("differences to a baseline", "name a BYOL run with --baseline=RUN"))
    featured = comparison.featured
    for run in comparison.runs:
        entries += _curves(run)
        entries += _parts(run, run in featured)
        if run in featured:
            entries += _alignment(comparison, run)
            entries += _examples(run)
    for run in comparison.contenders:
        entries += _differences(run, comparison.baseline)
    return entries


def _curves(run: Run) -> list[Missing]:
    absent = []
    if not run.metrics:
        absent.append((f"training curves of {run.name}", METRICS))
    if run.traits.bayesian and not run.posterior:
        absent.append((f"{SIGMA} and SNR over training of {run.name}", POSTERIOR))
    return [Missing(what, f"{run.path} has no {file}; training writes it") for what, file in absent]


def _parts(run: Run, is_featured: bool) -> list[Missing]:
    expected = [*ALL_RUNS, *(FEATURED_RUNS if is_featured else ())]
    if run.traits.bayesian and is_featured:
        expected += FEATURED_BAYESIAN_RUNS
    absent = [part for part in expected if not _is_complete(run, part)]
    if not absent:
        return []
    how = "to measure it:" if len(absent) == 1 else "to measure them:"
    return [Missing(f"{', '.join(absent)} of {run.name}", how, _evaluate(run, f"--only={','.join(absent)}"))]


def _alignment(comparison: Comparison, run: Run) -> list[Missing]:
    if not run.is_byov or _is_complete(run, "alignment"):
        return []
    supervised = (r for r in comparison.runs if r.traits.bayesian and r.traits.supervised)
    path = next((shlex.quote(str(r.path)) for r in supervised), "RUN")
    command = _evaluate(run, f"--supervised={path} --only=alignment")
    return [Missing(f"alignment of {run.name} with a supervised run", "to measure it:", command)]


def _examples(run: Run) -> list[Missing]:
    if not _is_complete(run, "calibration") or selected(run) is not None:
        return []
    file = run.path / run_directory.ARRAYS / "calibration.json"
    how = f"its evaluation did not store them; remove {file} and run"
    command = _evaluate(run, "--only=calibration")
    return [Missing(f"most and least certain images of {run.name}", how, command)]


def _differences(run: Run, baseline: Run | None) -> list[Missing]:
    if baseline is None:
        return []
    entries = []
    for part in ("calibration", "shift"):
        if not run.measured(part):
            continue
        what = f"differences of {run.name} to {baseline.name}: {part}"
        if not baseline.measured(part):
            entries.append(
                Missing(what, f"measure it for {baseline.name}:", _evaluate(baseline, f"--only={part}"))
            )
        elif not gains.comparable(run, baseline, part):
            entries.append(Missing(what, "they were measured on other images or with another --seed"))
    return entries


def _is_complete(run: Run, part: str) -> bool:
    """Whether the part was measured and has the arrays that its figure needs."""
    if not run.measured(part):
        return False
    if part in ("probe", "pruning", "latent"):
        return True  # drawn from evaluation.json alone
    return (run.path / run_directory.ARRAYS / f"{part}.npz").is_file()


def _evaluate(run: Run, flags: str) -> str:
    return f"byov evaluate --run={shlex.quote(str(run.path))} {flags}"
