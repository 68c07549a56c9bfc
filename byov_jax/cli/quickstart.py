"""Train, evaluate and compare three methods on embedded images, and draw everything on one page.

    byov quickstart [--steps=N] [--seed=0] [--workdir=runs/quickstart]

A small vision transformer learns from 10,000 Fashion-MNIST images three times: by BYOL, without labels; by
BYOV, without labels and with a posterior over its weights; and by Bayes by Backprop with labels, to compare
uncertainties with. Everything is measured on 2,000 other images and shown on one page, WORKDIR/report.html.
The same command resumes an interrupted quickstart.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from byov_jax import report
from byov_jax.checkpoints import store
from byov_jax.cli import command, compilation, evaluate, preview
from byov_jax.cli.progress import QuickstartProgress
from byov_jax.errors import RunError
from byov_jax.evaluation.suite import PARTS
from byov_jax.evaluation.suite.evaluator import Evaluator
from byov_jax.methods import TRAITS
from byov_jax.recipes import quickstart as recipe
from byov_jax.training import build, run_directory, trainer
from byov_jax.training.config import Config

SECONDS = {
    "byol": {"train": 80.0, "probe": 10.0, "calibration": 10.0, "shift": 10.0, "pruning": 5.0},
    "byov": {
        "train": 90.0,
        "probe": 40.0,
        "calibration": 10.0,
        "convergence": 5.0,
        "shift": 10.0,
        "ood": 5.0,
        "pruning": 10.0,
        "latent": 10.0,
        "alignment": 10.0,
        "layers": 1.0,
    },
    "supervised_bbb": {"train": 40.0, "calibration": 10.0},
}
"""Expected seconds of each training and measurement on two cores, for the time left."""

REPORT = 15.0

SMOKE_PARTS = ("probe", "calibration", "layers")
"""The parts of an evaluation that `--smoke` measures."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _arguments(argv)
    return command.run("quickstart", lambda: _run(arguments), "interrupted; the same command resumes it")


def _run(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    compilation.enable(arguments.compilation_cache)
    progress = QuickstartProgress(sum(sum(parts.values()) for parts in SECONDS.values()) + REPORT)
    try:
        for method in SECONDS:
            _train(method, arguments, progress)
        measured = _evaluate(arguments.workdir, progress, SMOKE_PARTS if arguments.smoke else PARTS)
        progress.advance(0.0, "drawing the report")
        folders = [arguments.workdir / method for method in SECONDS]
        page = report.write(folders, arguments.workdir / "report.html", arguments.workdir / "byol")
        progress.advance(REPORT, "done")
    except ValueError as error:
        raise RunError(str(error)) from error
    finally:
        progress.close()
    print(f"\n{table(measured)}\n")
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes, seed {arguments.seed}. Look at {page}")


def _train(method: str, arguments: argparse.Namespace, progress: QuickstartProgress) -> None:
    config = Config.parse(recipe.get_config(method)).updated({"seed": arguments.seed})
    if arguments.steps is not None:
        warmup = arguments.steps // 10
        config = config.updated({"steps": arguments.steps, "optimizer": {"warmup": warmup}})
    data = build.dataset(config)
    if arguments.smoke:
        config, data = preview.shrink(config, devices=jax.device_count()), preview.subset(data)
    config = trainer.resolve_config(config, data, devices=jax.device_count())
    workdir, steps, seconds = arguments.workdir / method, config.steps, SECONDS[method]["train"]
    saved = store.latest_step(workdir / run_directory.CHECKPOINTS) or 0
    if run_directory.holds_run(workdir, config) and saved:
        progress.say(f"{workdir}: resuming after step {saved} of {steps}")
        progress.advance(seconds * saved / steps, method)
    callbacks = progress.training(config, seconds)
    with command.stop_on_signal(lambda text: progress.say(f"{method}: {text}")) as received:
        result = trainer.train(config, data, workdir, callbacks._replace(stop=received))
    if result.step < steps:
        text = f"saved {method} at step {result.step}; the same command resumes it"
        raise command.Interrupted(result.stop, text)


def _evaluate(workdir: Path, progress: QuickstartProgress, chosen: Iterable[str]) -> dict[str, Evaluator]:
    """Evaluate all three, BYOV against the two others."""
    comparison = [f"--baseline={workdir / 'byol'}", f"--supervised={workdir / 'supervised_bbb'}"]
    measured = {}
    alone = ["--features=student"]  # raw pixels and the untrained network are measured once, with BYOV
    for method, more in (("byol", alone), ("supervised_bbb", alone), ("byov", comparison)):
        parts = [part for part in SECONDS[method] if part in chosen]
        arguments = evaluate.parse(
            [f"--run={workdir / method}", f"--only={','.join(parts)}", "--labels=", *more]
        )
        measured[method], _ = evaluate.evaluate(arguments, progress.parts(method, SECONDS[method]))
    return measured


def table(measured: dict[str, Evaluator]) -> str:
    """Format accuracy and calibration of each method, raw pixels and the untrained network."""
    columns = ("top1", "ece", "reliability", "nll")
    header = ("accuracy", "ECE", "Brier rel.", "NLL", "kNN 20")
    images = f"{len(measured['byov'].data.test.label):,} test images"
    lines = [f"{images:34}" + "".join(f"{name:>12}" for name in header)]
    for method, name in (("byol", "BYOL"), ("byov", "BYOV"), ("supervised_bbb", "supervised BBB")):
        numbers: dict[str, Any] = measured[method].read("calibration") or {}
        neighbours = (measured[method].read("probe") or {}).get("accuracy", {})
        bayesian = TRAITS[method].bayesian
        modes = {"mean": "mean weights", "mc": f"{numbers['draws']} draws"}
        for mode, label in modes.items():
            if not bayesian and mode == "mc":
                continue
            values = [numbers[mode][column]["value"] for column in columns]
            row = {"mean": "student mean", "mc": "student MC"}[mode]
            near = f"{neighbours[row]['kNN 20']:12.1%}" if row in neighbours else ""
            label = f"{name}, {label}" if bayesian else name
            shown = f"{values[0]:12.1%}{values[1]:12.1%}{values[2]:12.3f}{values[3]:12.3f}"
            lines.append(f"{label:34}{shown}{near}")
    accuracy = (measured["byov"].read("probe") or {})["accuracy"]
    for row, name in (("untrained", "untrained network"), ("raw pixels", "raw pixels")):
        lines.append(f"{name:34}{accuracy[row]['linear']:12.1%}{'':36}{accuracy[row]['kNN 20']:12.1%}")
    return "\n".join(lines)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = command.parser("quickstart", __doc__)
    parser.add_argument(
        "--steps", type=int, metavar="N", help="optimizer steps of each training (default: the recipe's)"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="small versions and few measurements, to see that all works"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of everything random (default: 0)"
    )
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("runs/quickstart"),
        metavar="DIR",
        help="where runs and report are kept (default: %(default)s)",
    )
    compilation.add_flag(parser)
    arguments = parser.parse_args(argv)
    if arguments.steps is not None and arguments.steps < 2:
        parser.error(f"--steps={arguments.steps} must be at least 2")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
