r"""Train a config.

    python -m byov_jax.cli.train --config=experiments/configs/fashion_mnist.py:byov --workdir=runs/fashion
    python -m byov_jax.cli.train --config=experiments/configs/folder.py --config.data.source=PHOTOS \
        --workdir=runs/mine

Any value of a config can be changed on the command line: --config.steps=2000 --config.optimizer.warmup=100.
The run directory then holds config.json, metrics.jsonl, posterior.jsonl and checkpoints. The same command
goes on where an interrupted run stopped, and ends with the same numbers. Afterwards:

    python -m byov_jax.cli.evaluate --run=runs/fashion
    python -m byov_jax.cli.report runs/fashion --out=report.html

Ctrl-C, SIGTERM and SIGUSR1 stop it after the step it is in, with the state saved; a second Ctrl-C at once.

Exit codes: 0 done, 1 it could not go on or could not be saved, 2 wrong input (nothing was written), 130, 143
or 138 stopped by Ctrl-C, SIGTERM or SIGUSR1 (the state was saved).
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from byov_jax.checkpoints import store
from byov_jax.cli import command, config_flags, dry_run, progress, signals, smoke
from byov_jax.data import load
from byov_jax.distributed import cluster, processes
from byov_jax.errors import RunError
from byov_jax.training import build, run_directory
from byov_jax.training import trainer as runs


def main(argv: list[str] | None = None, *, name: str = "train", description: str | None = __doc__) -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv, name, description)
    interrupted = "stopped at once; the same command goes on from the last checkpoint"
    return cluster.exit_code(lambda: command.run(name, lambda: start(arguments), interrupted))


def start(arguments: argparse.Namespace) -> int:
    """Everything between the arguments and the exit code."""
    cluster.initialize(arguments)
    config, data = prepare(arguments)
    if arguments.dry_run:
        print(dry_run.describe(config))
        return 0
    if not arguments.smoke:
        return train(config, data, arguments.workdir, arguments)
    with tempfile.TemporaryDirectory() as folder, smoke.quick_compilation():
        return train(config, data, arguments.workdir or Path(folder) / "run", arguments)


def prepare(arguments: argparse.Namespace) -> tuple[dict[str, Any], runs.AnyDataset]:
    """The complete config and its data; whatever is wrong with them is a RunError."""
    try:
        config = config_flags.load_config(arguments.config, arguments.changes)
        data = load.load(config["data"], build.views(config).first.size or 0)
        if arguments.smoke:
            config, data = smoke.shrink(config, devices=jax.device_count()), smoke.few(data)
        return runs.resolve_config(config, data, devices=jax.device_count()), data
    except ValueError as error:
        raise RunError(str(error)) from None


def train(config: dict[str, Any], data: runs.AnyDataset, workdir: Path, arguments) -> int:
    """Trains behind a progress bar."""
    processes.run_on_main(lambda: run_directory.create_or_open(workdir, config))
    steps, first = config["steps"], store.latest_step(workdir / run_directory.CHECKPOINTS) or 0
    if first and processes.is_main():
        print(f"{workdir}: {'done already' if first >= steps else f'goes on after step {first}'}", flush=True)
    with progress.training(config["method"], first, steps) as listener, cluster.report_lost_process(workdir):
        reached, signal = runs.train(config, data, workdir, listener, tensorboard=arguments.tensorboard)
    if reached < steps:
        raise signals.Interrupted(
            signal, f"{workdir}: saved at step {reached} of {steps}; the same command goes on"
        )
    if arguments.smoke:
        smoke.try_out(workdir, data)
        print(f"smoke: {arguments.config} trains, saves, loads and predicts")
    elif processes.is_main():
        print(f"{workdir}: {steps} steps done; python -m byov_jax.cli.evaluate --run={workdir}")
    return 0


def _arguments(argv: list[str], name: str = "train", description: str | None = __doc__) -> argparse.Namespace:
    others, changes = config_flags.split(argv)
    parser = command.parser(name, description)
    add = parser.add_argument
    add("--config", required=True, metavar="FILE[:VARIANT]", help="a Python file with get_config(variant)")
    add("--workdir", type=Path, metavar="DIR", help="the run directory, new or of the same run")
    add("--dry_run", action="store_true", help="print parameters, schedules and memory, and stop")
    add("--smoke", action="store_true", help="train a small version for a few steps, to see that all works")
    add("--tensorboard", action="store_true", help="also write TensorBoard events, to DIR/tensorboard")
    cluster.add_arguments(parser)
    arguments = parser.parse_args(others)
    if arguments.workdir is None and not (arguments.dry_run or arguments.smoke):
        parser.error("--workdir=DIR is needed: where shall the run be kept?")
    arguments.changes = changes
    return arguments


if __name__ == "__main__":
    sys.exit(main())
