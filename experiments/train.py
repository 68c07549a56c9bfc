r"""Train a config.

    python -m experiments.train --config=experiments/configs/fashion_mnist.py:byov --workdir=runs/fashion
    python -m experiments.train --config=experiments/configs/folder.py --config.data.source=PHOTOS \
        --workdir=runs/mine

Any value of a config can be changed on the command line: --config.steps=2000 --config.optimizer.warmup=100.
The run directory then holds config.json, metrics.jsonl, posterior.jsonl and checkpoints. The same command
goes on where an interrupted run stopped, and ends with the same numbers. Afterwards:

    python -m experiments.evaluate --run=runs/fashion
    python -m experiments.report runs/fashion --out=report.html

Exit codes: 0 done, 2 wrong input (nothing was written), 130 interrupted (the state was saved).
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from byov_jax import run as runs
from byov_jax.data import source
from byov_jax.train import checkpoint, directory
from byov_jax.train.directory import RunError
from experiments import choose, display, dry_run, smoke

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    try:
        return command(arguments)
    except (RunError, OSError) as error:
        print(f"train: {one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("train: stopped at once; the same command goes on from the last checkpoint", file=sys.stderr)
        return EXIT_INTERRUPTED


def command(arguments: argparse.Namespace) -> int:
    """Everything between the arguments and the exit code."""
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
        config = choose.choose(arguments.config, arguments.changes)
        data = source.load(config["data"]["source"], resize=config["data"]["resize"])
        if arguments.smoke:
            config, data = smoke.shrink(config, devices=jax.device_count()), smoke.few(data)
        return runs.prepare(config, data, devices=jax.device_count()), data
    except ValueError as error:
        raise RunError(str(error)) from None


def train(config: dict[str, Any], data: runs.AnyDataset, workdir: Path, arguments) -> int:
    """Trains behind a progress bar."""
    runs.claim(workdir, config)
    steps, first = config["steps"], checkpoint.latest(workdir / directory.CHECKPOINTS) or 0
    if first:
        print(f"{workdir}: {'done already' if first >= steps else f'goes on after step {first}'}", flush=True)
    with display.training(config["method"], first, steps) as listener:
        reached = runs.train(config, data, workdir, listener, tensorboard=arguments.tensorboard)
    if reached < steps:
        print(f"{workdir}: saved at step {reached} of {steps}; the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    if arguments.smoke:
        smoke.try_out(workdir, data)
        print(f"smoke: {arguments.config} trains, saves, loads and predicts")
    else:
        print(f"{workdir}: {steps} steps done; python -m experiments.evaluate --run={workdir}")
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    others, changes = choose.split(argv)
    parser = argparse.ArgumentParser(
        prog="python -m experiments.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", required=True, metavar="FILE[:VARIANT]", help="a Python file with get_config(variant)")
    add("--workdir", type=Path, metavar="DIR", help="the run directory, new or of the same run")
    add("--dry_run", action="store_true", help="print parameters, schedules and memory, and stop")
    add("--smoke", action="store_true", help="train a small version for a few steps, to see that all works")
    add("--tensorboard", action="store_true", help="also write TensorBoard events, to DIR/tensorboard")
    arguments = parser.parse_args(others)
    if arguments.workdir is None and not (arguments.dry_run or arguments.smoke):
        parser.error("--workdir=DIR is needed: where shall the run be kept?")
    arguments.changes = changes
    return arguments


def one_line(error: Exception) -> str:
    """What an error says, without line breaks."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
