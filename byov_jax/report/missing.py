"""What a report could not show because it was not measured, and the command that measures it."""

import shlex
from typing import NamedTuple

from byov_jax.report import gains
from byov_jax.report.comparison import Comparison
from byov_jax.report.figures.examples import chosen
from byov_jax.report.formatting import SIGMA
from byov_jax.report.runs import Run
from byov_jax.training import run_directory
from byov_jax.training.run_directory import METRICS, POSTERIOR

ALWAYS = ("probe", "calibration")
OF_FEATURED = ("shift", "pruning")
OF_POSTERIORS = ("convergence", "latent")


class Missing(NamedTuple):
    """One entry of the list.

    Attributes:
      what: is missing, of which run.
      how: the words before the command, or all there is to say.
      command: that measures it; empty if there is none.
    """

    what: str
    how: str
    command: str = ""


def missing(study: Comparison) -> list[Missing]:
    """All that is not there, run by run."""
    found = []
    if study.baseline is None:
        found.append(Missing("differences to a baseline", "name a BYOL run with --baseline=RUN"))
    featured = study.featured
    for run in study.runs:
        found += _training(run)
        found += _parts(study, run, run in featured)
    for run in study.contenders:
        found += _differences(run, study.baseline)
    return found


def _training(run: Run) -> list[Missing]:
    found = []
    if not run.metrics:
        found.append(
            Missing(f"training curves of {run.name}", f"{run.path} has no {METRICS}; training writes it")
        )
    if run.bayesian and not run.posterior:
        what = f"{SIGMA} and SNR over training of {run.name}"
        found.append(Missing(what, f"{run.path} has no {POSTERIOR}; training writes it"))
    return found


def _parts(study: Comparison, run: Run, is_featured: bool) -> list[Missing]:
    expected = [*ALWAYS, *(OF_FEATURED if is_featured else ())]
    if run.bayesian and is_featured:
        expected += OF_POSTERIORS
    absent = [part for part in expected if not run.measured(part) or _lacks_arrays(run, part)]
    command = f"python -m byov_jax.cli.evaluate --run={shlex.quote(str(run.path))}"
    found = []
    if absent:
        them = "it" if len(absent) == 1 else "them"
        found.append(
            Missing(
                f"{', '.join(absent)} of {run.name}",
                f"to measure {them}:",
                f"{command} --only={','.join(absent)}",
            )
        )
    if (
        run.method == "byov"
        and is_featured
        and (not run.measured("alignment") or _lacks_arrays(run, "alignment"))
    ):
        other = next((str(r.path) for r in study.runs if r.method == "supervised_bbb"), "RUN")
        given = f"--supervised={shlex.quote(other)} --only=alignment"
        found.append(
            Missing(f"alignment of {run.name} with a supervised run", "to measure it:", f"{command} {given}")
        )
    if is_featured and "calibration" not in absent and chosen(run) is None:
        kept = run.path / run_directory.ARRAYS / "calibration.json"
        how = f"its evaluation is from before they were kept; remove {kept} and run"
        found.append(
            Missing(f"most and least certain images of {run.name}", how, f"{command} --only=calibration")
        )
    return found


def _lacks_arrays(run: Run, part: str) -> bool:
    if part in ("probe", "pruning", "latent"):
        return False  # their figures are drawn from numbers
    return not (run.path / run_directory.ARRAYS / f"{part}.npz").is_file()


def _differences(run: Run, baseline: Run | None) -> list[Missing]:
    if baseline is None:
        return []
    found = []
    for part in ("calibration", "shift"):
        if not run.measured(part):
            continue
        what = f"differences of {run.name} to {baseline.name}: {part}"
        if not baseline.measured(part):
            where = shlex.quote(str(baseline.path))
            command = f"python -m byov_jax.cli.evaluate --run={where} --only={part}"
            found.append(Missing(what, f"{baseline.name} lacks it:", command))
        elif not gains.comparable(run, baseline, part):
            found.append(Missing(what, "they were measured on other images or with another --seed"))
    return found
