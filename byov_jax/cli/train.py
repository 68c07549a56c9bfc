r"""Train a config in a run directory, or resume it.

    byov train --config=quickstart:byov --workdir=runs/mine
    byov train --config=folder --config.data.source=PHOTOS --workdir=runs/photos

--config names a recipe, or a Python file with get_config(variant); a variant may follow after a colon. Any
value can be changed on the command line: --config.steps=2000 --config.optimizer.warmup=100; all keys are
listed below. The run directory then holds config.json, metrics.jsonl, posterior.jsonl and checkpoints. The
same command resumes an interrupted run, which ends with the same numbers. Afterwards:

    byov evaluate --run=runs/mine
    byov report runs/mine --out=report.html

Ctrl-C, SIGTERM and SIGUSR1 stop after the current step, with the state saved; a second Ctrl-C stops at once.

Exit codes: 0 done, 1 the training could not continue or be saved, 2 wrong input (nothing was written), 130,
143 or 138 stopped by Ctrl-C, SIGTERM or SIGUSR1 (the state was saved).
"""

import argparse
import sys
import tempfile
from pathlib import Path

import jax

from byov_jax.checkpoints import store
from byov_jax.cli import command, compilation, flags, preview, progress
from byov_jax.distributed import cluster, processes
from byov_jax.errors import RunError
from byov_jax.training import build, run_directory, trainer
from byov_jax.training.build import AnyDataset
from byov_jax.training.config import Config


def main(argv: list[str] | None = None, *, name: str = "train", description: str | None = __doc__) -> int:
    """Run the command and return its exit code."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv, name, description)
    interrupted = "stopped at once; the same command resumes from the last checkpoint"
    return cluster.exit_code(lambda: command.run(name, lambda: start(arguments), interrupted))


def start(arguments: argparse.Namespace) -> int:
    """Do everything between the arguments and the exit code."""
    flags.initialize_cluster(arguments)
    config, data = prepare(arguments)
    compilation.enable(arguments.compilation_cache)
    if arguments.dry_run:
        print(preview.describe(config))
        return 0
    if not arguments.smoke:
        return train(config, data, arguments.workdir, arguments)
    with tempfile.TemporaryDirectory() as folder, preview.quick_compilation():
        return train(config, data, arguments.workdir or Path(folder) / "run", arguments)


def prepare(arguments: argparse.Namespace) -> tuple[Config, AnyDataset]:
    """Return the resolved config and its data; anything wrong with them is a RunError."""
    try:
        config = flags.load_config(arguments.config, arguments.changes)
        data = build.dataset(config)
        if arguments.smoke:
            config, data = preview.shrink(config, devices=jax.device_count()), preview.subset(data)
        return trainer.resolve_config(config, data, devices=jax.device_count()), data
    except ValueError as error:
        raise RunError(str(error)) from None


def train(config: Config, data: AnyDataset, workdir: Path, arguments: argparse.Namespace) -> int:
    """Train behind a progress bar."""
    processes.run_on_main(lambda: run_directory.create_or_open(workdir, config))
    if data.description and processes.is_main():
        print(f"{config.data.source}: {data.description}", flush=True)
    steps, first = config.steps, store.latest_step(workdir / run_directory.CHECKPOINTS) or 0
    if first and processes.is_main():
        print(
            f"{workdir}: {'done already' if first >= steps else f'resuming after step {first}'}", flush=True
        )
    with progress.training(config.method, first, config) as callbacks, cluster.report_lost_process(workdir):
        result = trainer.train(config, data, workdir, callbacks, tensorboard=arguments.tensorboard)
    if result.step < steps:
        raise command.Interrupted(
            result.stop, f"{workdir}: saved at step {result.step} of {steps}; the same command resumes it"
        )
    if arguments.smoke:
        preview.check_model(workdir, data)
        print(f"smoke: {arguments.config} trains, saves, loads and predicts")
    elif processes.is_main():
        print(f"{workdir}: {steps} steps done; byov evaluate --run={workdir}")
    return 0


def _arguments(argv: list[str], name: str = "train", description: str | None = __doc__) -> argparse.Namespace:
    others, changes = flags.split_config_flags(argv)
    parser = command.parser(name, description)
    parser.epilog = f"keys of a config, for --config.KEY=VALUE:\n\n{flags.key_table()}"
    add = parser.add_argument
    add("--config", required=True, metavar="NAME[:VARIANT]", help=flags.CONFIG_HELP)
    add("--workdir", type=Path, metavar="DIR", help="the run directory, new or of the same run")
    add("--dry_run", action="store_true", help="print parameters, schedules and memory, and stop")
    add("--smoke", action="store_true", help="train a small version for a few steps, to see that all works")
    add("--tensorboard", action="store_true", help="also write TensorBoard events, to DIR/tensorboard")
    flags.add_cluster_flags(parser)
    compilation.add_flag(parser)
    arguments = parser.parse_args(others)
    if arguments.workdir is None and not (arguments.dry_run or arguments.smoke):
        parser.error("--workdir=DIR is required: the run directory")
    arguments.changes = changes
    return arguments


if __name__ == "__main__":
    sys.exit(main())
