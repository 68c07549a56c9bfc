r"""Train and evaluate a grid of runs: prior x beta x where x seed.

    byov sweep --config=quickstart --workdir=runs/sweep \
        --prior=standard,teacher_mean --beta=0.3,1:1 --where=all,no_conv --seed=0,1,2 --baseline
    byov sweep --config=imagenet:vit_b16 --workdir=DIR --grid=paper

Runs are trained one after another, each in a directory of its own, such as
runs/sweep/byov-standard-beta0to0.3-all-seed0. The same command resumes an interrupted sweep: finished runs
are skipped, unfinished ones resumed. A run that fails is reported in one line, its traceback written to
RUN/error.txt, and the others continue. At the end runs/sweep/summary.md and summary.csv have a row for every
setting: mean over seeds, and a 95% interval. Then:

    byov report runs/sweep --out=sweep.html

Any value of the config can be changed for all runs: --config.steps=2000.

Exit codes: 0 all done, 1 some failed, 2 wrong input (nothing was written), 130 (Ctrl-C),
143 (SIGTERM) or 138 (SIGUSR1) interrupted, with the current run saved.
"""

import argparse
import contextlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from byov_jax import files
from byov_jax.checkpoints import store
from byov_jax.cli import command, compilation, flags, grid, progress
from byov_jax.data.dataset import Unlabelled
from byov_jax.errors import RunError
from byov_jax.evaluation.suite import PARTS
from byov_jax.evaluation.suite import run as evaluation
from byov_jax.report import aggregate
from byov_jax.report import runs as results
from byov_jax.training import build, run_directory, trainer
from byov_jax.training.build import AnyDataset
from byov_jax.training.config import Config

ERROR = "error.txt"
SUMMARY = "summary"
SUMMARIZED = "calibration"
"""The part of an evaluation that the summary is made of."""


class Job(NamedTuple):
    """A run of the sweep, ready to start."""

    folder: Path
    config: Config
    data: AnyDataset


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    return command.run("sweep", lambda: start(arguments), "stopped at once; the same command resumes it")


def start(arguments: argparse.Namespace) -> int:
    """Do everything between the arguments and the exit code."""
    jobs = prepare(arguments)
    if arguments.dry_run:
        print("\n".join([f"{len(jobs)} runs in {arguments.workdir}", *map(_status, jobs)]))
        return 0
    try:
        arguments.workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"--workdir={arguments.workdir} cannot be made ({reason}): choose another") from None
    compilation.enable(arguments.compilation_cache)
    failed = run_all(jobs, arguments.evaluate)
    summarize(arguments.workdir, jobs, failed)
    return command.EXIT_FAILED if failed else 0


def prepare(arguments: argparse.Namespace) -> list[Job]:
    """Return all runs, with configs checked and data loaded; anything wrong with them is a RunError."""
    workdir = arguments.workdir
    if (workdir / run_directory.CONFIG).exists():
        raise RunError(f"--workdir={workdir} is a run directory itself: choose a folder for many of them")
    loaded: dict[str, AnyDataset] = {}
    jobs = []
    try:
        for name, config in _points(arguments):
            key = repr((config.data, build.views(config).first.size))
            if key not in loaded:
                loaded[key] = build.dataset(config)
                if loaded[key].description:
                    print(f"{config.data.source}: {loaded[key].description}", flush=True)
            data = loaded[key]
            if isinstance(data, Unlabelled):
                raise RunError(
                    f"config.data.source={config.data.source} has no labels, which the evaluation needs"
                )
            resolved = trainer.resolve_config(config, data, devices=jax.device_count())
            jobs.append(Job(workdir / name, resolved, data))
    except ValueError as error:
        raise RunError(str(error)) from None
    return jobs


def _points(arguments: argparse.Namespace) -> list[grid.Point]:
    unknown = [part for part in arguments.evaluate if part not in PARTS]
    if unknown or SUMMARIZED not in arguments.evaluate:
        raise ValueError(
            f"--evaluate={','.join(arguments.evaluate)}: expected {SUMMARIZED}, which the summary shows, and "
            f"others of {', '.join(PARTS)}"
        )
    beta = grid.betas(arguments.beta) if arguments.beta else ()
    seed = grid.seeds(arguments.seed) if arguments.seed else ()
    axes = grid.Axes(arguments.prior, beta, arguments.where, seed)
    return grid.points(arguments.config, arguments.changes, axes, baseline=arguments.baseline)


def run_all(jobs: Sequence[Job], parts: Sequence[str]) -> list[Path]:
    """Train and evaluate one run after another; return the folders of those that failed."""
    failed: list[Path] = []
    durations: list[float] = []
    for number, job in enumerate(jobs, start=1):
        left = _time_left(durations, jobs[number - 1 :])
        print(f"[{number}/{len(jobs)}] {job.folder.name}{left}", flush=True)
        start = time.perf_counter()
        try:
            if run_one(job, parts, f"{job.config.method} {number}/{len(jobs)}"):
                durations.append(time.perf_counter() - start)
            else:
                print(f"{job.folder}: done already", flush=True)
        except Exception as error:  # any error of one run: the others may succeed
            failed.append(job.folder)
            kind = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
            message = f"sweep: {job.folder.name} failed: {kind}{command.one_line(error)}"
            print(message, file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):  # the folder itself may be the cause
                files.write_text(job.folder / ERROR, traceback.format_exc())
    return failed


def run_one(job: Job, parts: Sequence[str], label: str) -> bool:
    """Train and evaluate what is missing; return whether anything was."""
    (job.folder / ERROR).unlink(missing_ok=True)
    run_directory.create_or_open(job.folder, job.config)
    steps, first = job.config.steps, _saved_step(job)
    if first < steps:
        with progress.training(label, first, job.config) as callbacks:
            result = trainer.train(job.config, job.data, job.folder, callbacks)
        if result.step < steps:
            saved = f"{job.folder} saved at step {result.step} of {steps}"
            raise command.Interrupted(result.stop, f"{saved}; the same command resumes it")
    evaluator = evaluation.open_run(job.folder)
    written = (job.folder / run_directory.EVALUATION).is_file()
    if written and all(evaluator.read(part) is not None for part in parts):
        return first < steps
    evaluator.measure(parts)
    evaluation.write_result(job.folder, evaluator)
    return True


def summarize(workdir: Path, jobs: Sequence[Job], failed: Sequence[Path]) -> None:
    """Write and print the table over all runs that did not fail."""
    rows = aggregate.over_seeds([results.read(job.folder) for job in jobs if job.folder not in failed])
    text = (
        f"{aggregate.to_markdown(rows)}\n"
        "Mean over seeds ± half of the 95% interval (Student's t); a single seed has none. "
        "Gains are over BYOL's mean weights, seed by seed, in percentage points; positive is better.\n"
    )
    if failed:
        names = "".join(f"- {folder.name}: see {folder.name}/{ERROR}\n" for folder in failed)
        text += f"\n{len(failed)} of {len(jobs)} runs failed and are not in the table:\n\n{names}"
    files.write_text(workdir / f"{SUMMARY}.md", text)
    files.write_text(workdir / f"{SUMMARY}.csv", aggregate.to_csv(rows))
    print(f"\n{text}\n{workdir / SUMMARY}.md, {workdir / SUMMARY}.csv")


def _saved_step(job: Job) -> int:
    return store.latest_step(job.folder / run_directory.CHECKPOINTS) or 0


def _status(job: Job) -> str:
    steps = job.config.steps
    try:
        saved = _saved_step(job) if run_directory.holds_run(job.folder, job.config) else 0
    except RunError as error:
        return f"  {job.folder.name}  fails: {error}"
    if saved >= steps:
        return f"  {job.folder.name}  trained"
    return f"  {job.folder.name}  {f'resumes after step {saved} of {steps}' if saved else 'new'}"


def _time_left(durations: Sequence[float], jobs: Sequence[Job]) -> str:
    """Return the time left, extrapolated from the runs so far."""
    if not durations:
        return ""
    rest = sum(1 - _saved_step(job) / job.config.steps for job in jobs)
    minutes, seconds = divmod(round(rest * sum(durations) / len(durations)), 60)
    return f"  about {minutes}:{seconds:02} left"


def _arguments(argv: list[str]) -> argparse.Namespace:
    others, changes = flags.split_config_flags(argv)
    parser = command.parser("sweep", __doc__)
    add = parser.add_argument
    add("--config", required=True, metavar="NAME[:VARIANT]", help=flags.CONFIG_HELP)
    add("--workdir", type=Path, required=True, metavar="DIR", help="where the run directories go")
    add("--grid", choices=list(grid.GRIDS), help="the paper's ablations: " + grid.explained())
    add("--prior", default="", metavar="NAMES", help=", ".join(build.PRIORS))
    add("--beta", default="", metavar="VALUES", help="END, annealed from 0, or START:END, as in 0.3,1:1")
    add("--where", default="", metavar="NAMES", help="which weights are Bayesian: all, no_conv, linear_only")
    add("--seed", default="", metavar="NUMBERS", help="as in 0,1,2; two or more for an interval")
    add("--baseline", action="store_true", help="also train BYOL with every seed, and report gains over it")
    add("--evaluate", default="probe,calibration", metavar="PARTS", help="see byov evaluate --help")
    add("--dry_run", action="store_true", help="print the runs and their progress, and stop")
    compilation.add_flag(parser)
    arguments = parser.parse_args(others)
    arguments.changes = changes
    for name, value in (grid.GRIDS[arguments.grid] if arguments.grid else {}).items():
        setattr(arguments, name, getattr(arguments, name) or value)
    for name in ("prior", "where", "evaluate"):
        setattr(arguments, name, [part for part in getattr(arguments, name).split(",") if part])
    return arguments


if __name__ == "__main__":
    sys.exit(main())
