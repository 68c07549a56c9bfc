r"""Train and evaluate a grid of runs: prior x beta x where x seed.

    python -m byov_jax.cli.sweep --config=experiments/configs/quickstart.py --workdir=runs/sweep \
        --prior=standard,teacher_mean --beta=0.3,1:1 --where=all,no_conv --seed=0,1,2 --baseline
    python -m byov_jax.cli.sweep --config=experiments/configs/imagenet.py:vit_b16 --workdir=DIR --grid=paper

One run after another, each in a directory of its own, such as runs/sweep/byov-standard-beta0to0.3-all-seed0.
The same command goes on where it stopped: what is done is skipped, what is half done goes on. A run that
fails is told in one line, its traceback kept in RUN/error.txt, and the others go on. At the end
runs/sweep/summary.md and summary.csv have a row for every setting: mean over seeds, and a 95% interval. Then:

    python -m byov_jax.cli.report runs/sweep --out=sweep.html

Any value of the config can be changed for all runs: --config.steps=2000.

Exit codes: 0 all done, 1 some failed, 2 wrong input (nothing was written), 130 (Ctrl-C),
143 (SIGTERM) or 138 (SIGUSR1) interrupted, with the run that was trained saved.
"""

import argparse
import contextlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from byov_jax import files
from byov_jax.checkpoints import store
from byov_jax.cli import command, config_flags, grid, progress, signals
from byov_jax.data import load
from byov_jax.data.dataset import Unlabelled
from byov_jax.errors import RunError
from byov_jax.evaluation.suite import PARTS
from byov_jax.evaluation.suite.evaluation import Evaluation
from byov_jax.evaluation.suite.subject import Options
from byov_jax.report import groups
from byov_jax.report import runs as results
from byov_jax.training import build, run_directory
from byov_jax.training import trainer as runs

ERROR = "error.txt"
SUMMARY = "summary"
SUMMARIZED = "calibration"
"""The part of an evaluation that the summary is made of."""


class Job(NamedTuple):
    """A run of the sweep, ready to start."""

    folder: Path
    config: dict[str, Any]
    data: runs.AnyDataset


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    return command.run("sweep", lambda: start(arguments), "stopped at once; the same command goes on")


def start(arguments: argparse.Namespace) -> int:
    """Everything between the arguments and the exit code."""
    jobs = prepare(arguments)
    if arguments.dry_run:
        print("\n".join([f"{len(jobs)} runs in {arguments.workdir}", *map(_plan, jobs)]))
        return 0
    _make(arguments.workdir)
    failed = run_all(jobs, arguments.evaluate)
    summarize(arguments.workdir, jobs, failed)
    return command.EXIT_FAILED if failed else 0


def prepare(arguments: argparse.Namespace) -> list[Job]:
    """All runs, each with its config checked and its data loaded; whatever is wrong is a RunError."""
    workdir = arguments.workdir
    if (workdir / run_directory.CONFIG).exists():
        raise RunError(f"--workdir={workdir} is a run directory itself: choose a folder for many of them")
    loaded: dict[str, runs.AnyDataset] = {}
    jobs = []
    try:
        for name, config in _points(arguments):
            size = build.views(config).first.size or 0
            place = repr((config["data"], size))
            if place not in loaded:
                loaded[place] = load.load(config["data"], size)
            data = loaded[place]
            if isinstance(data, Unlabelled):
                name = config["data"]["source"]
                raise RunError(f"config.data.source={name} has no labels, which the evaluation needs")
            jobs.append(
                Job(workdir / name, runs.resolve_config(config, data, devices=jax.device_count()), data)
            )
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


def _make(workdir: Path) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"--workdir={workdir} cannot be made ({reason}): choose another") from None


def run_all(jobs: Sequence[Job], parts: Sequence[str]) -> list[Path]:
    """Trains and evaluates one after another; returns the folders of those that failed."""
    failed: list[Path] = []
    durations: list[float] = []
    for number, job in enumerate(jobs, start=1):
        print(f"[{number}/{len(jobs)}] {job.folder.name}{_left(durations, jobs[number - 1 :])}", flush=True)
        start = time.perf_counter()
        try:
            if run_one(job, parts, f"{job.config['method']} {number}/{len(jobs)}"):
                durations.append(time.perf_counter() - start)
            else:
                print(f"{job.folder}: done already", flush=True)
        except Exception as error:  # whatever it is, the other runs may go well
            failed.append(job.folder)
            kind = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
            print(
                f"sweep: {job.folder.name} failed: {kind}{command.one_line(error)}",
                file=sys.stderr,
                flush=True,
            )
            with contextlib.suppress(OSError):  # the folder itself may be what is wrong
                files.write_text(job.folder / ERROR, traceback.format_exc())
    return failed


def run_one(job: Job, parts: Sequence[str], label: str) -> bool:
    """Trains and evaluates what is missing; returns whether anything was."""
    (job.folder / ERROR).unlink(missing_ok=True)
    run_directory.create_or_open(job.folder, job.config)
    steps, first = job.config["steps"], _reached(job)
    if first < steps:
        with progress.training(label, first, steps) as listener:
            reached, signal = runs.train(job.config, job.data, job.folder, listener)
        if reached < steps:
            raise signals.Interrupted(
                signal, f"{job.folder} saved at step {reached} of {steps}; the same command goes on"
            )
    evaluation = Evaluation(job.folder, argparse.Namespace(data=None, supervised=None, ood=None), Options())
    written = (job.folder / run_directory.EVALUATION).is_file()
    if written and all(evaluation.read(part) is not None for part in parts):
        return first < steps
    evaluation.measure(list(parts))
    evaluation.write(None)
    return True


def summarize(workdir: Path, jobs: Sequence[Job], failed: Sequence[Path]) -> None:
    """Writes and prints the table over all runs that did not fail."""
    rows = groups.groups([results.read(job.folder) for job in jobs if job.folder not in failed])
    text = (
        f"{groups.markdown(rows)}\n"
        "Mean over seeds ± half of the 95% interval (Student's t), which a single seed has not. "
        "Gains are over BYOL's mean weights, seed by seed, in percentage points; positive is better.\n"
    )
    if failed:
        names = "".join(f"- {folder.name}: see {folder.name}/{ERROR}\n" for folder in failed)
        text += f"\n{len(failed)} of {len(jobs)} runs failed and are not in the table:\n\n{names}"
    files.write_text(workdir / f"{SUMMARY}.md", text)
    files.write_text(workdir / f"{SUMMARY}.csv", groups.comma_separated(rows))
    print(f"\n{text}\n{workdir / SUMMARY}.md, {workdir / SUMMARY}.csv")


def _reached(job: Job) -> int:
    return store.latest_step(job.folder / run_directory.CHECKPOINTS) or 0


def _plan(job: Job) -> str:
    steps = job.config["steps"]
    try:
        reached = _reached(job) if run_directory.check_same(job.folder, job.config) else 0
    except RunError as error:
        return f"  {job.folder.name}  fails: {error}"
    if reached >= steps:
        return f"  {job.folder.name}  trained"
    return f"  {job.folder.name}  {f'goes on after step {reached} of {steps}' if reached else 'new'}"


def _left(durations: Sequence[float], jobs: Sequence[Job]) -> str:
    """The time that the rest will take, if it takes as long as what was done."""
    if not durations:
        return ""
    rest = sum(1 - _reached(job) / job.config["steps"] for job in jobs)
    minutes, seconds = divmod(round(rest * sum(durations) / len(durations)), 60)
    return f"  about {minutes}:{seconds:02} left"


def _arguments(argv: list[str]) -> argparse.Namespace:
    others, changes = config_flags.split(argv)
    parser = command.parser("sweep", __doc__)
    add = parser.add_argument
    add("--config", required=True, metavar="FILE[:VARIANT]", help="a Python file with get_config(variant)")
    add("--workdir", type=Path, required=True, metavar="DIR", help="where the run directories go")
    add("--grid", choices=list(grid.GRIDS), help="the paper's ablations: " + grid.explained())
    add("--prior", default="", metavar="NAMES", help="standard, teacher_mean, teacher_moments")
    add("--beta", default="", metavar="VALUES", help="END, annealed from 0, or START:END, as in 0.3,1:1")
    add("--where", default="", metavar="NAMES", help="which weights are Bayesian: all, no_conv, linear_only")
    add("--seed", default="", metavar="NUMBERS", help="as in 0,1,2; two or more for an interval")
    add("--baseline", action="store_true", help="also train BYOL with every seed, and show what is gained")
    add("--evaluate", default="probe,calibration", metavar="PARTS", help="see byov_jax.cli.evaluate --help")
    add("--dry_run", action="store_true", help="print the runs and how far each is, and stop")
    arguments = parser.parse_args(others)
    arguments.changes = changes
    for name, value in (grid.GRIDS[arguments.grid] if arguments.grid else {}).items():
        setattr(arguments, name, getattr(arguments, name) or value)
    for name in ("prior", "where", "evaluate"):
        setattr(arguments, name, [part for part in getattr(arguments, name).split(",") if part])
    return arguments


if __name__ == "__main__":
    sys.exit(main())
