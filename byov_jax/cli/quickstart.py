"""The whole story on embedded images: train, measure, compare, look.

    python -m byov_jax.cli.quickstart [--steps=N] [--seed=0] [--workdir=runs/quickstart]

A small vision transformer learns from 10,000 Fashion-MNIST images three times: by BYOL, without labels; by
BYOV, without labels and with a posterior over its weights; and by Bayes by Backprop with labels, to compare
uncertainties with. Everything is measured on 2,000 other images and shown on one page, WORKDIR/report.html.
An interrupted quickstart goes on where it stopped.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax

from byov_jax import report
from byov_jax.checkpoints import store
from byov_jax.cli import command, evaluate, signals
from byov_jax.cli.quickstart_progress import QuickstartProgress
from byov_jax.data import registry
from byov_jax.errors import RunError
from byov_jax.evaluation.suite.evaluation import Evaluation
from byov_jax.recipes import quickstart as recipes
from byov_jax.training import run_directory
from byov_jax.training import trainer as runs

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
"""What each training and measurement takes on two cores, for the time left."""

REPORT = 15.0


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments(argv)
    return command.run("quickstart", lambda: _tell(arguments), "interrupted; the same command goes on")


def _tell(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    story = QuickstartProgress(sum(sum(parts.values()) for parts in SECONDS.values()) + REPORT)
    try:
        for method in SECONDS:
            _train(method, arguments, story)
        measured = _evaluate(arguments.workdir, story)
        story.advance(0.0, "drawing the report")
        folders = [arguments.workdir / method for method in SECONDS]
        page = report.write(folders, arguments.workdir / "report.html", arguments.workdir / "byol")
        story.advance(REPORT, "done")
    except ValueError as error:
        raise RunError(str(error)) from error
    finally:
        story.close()
    print(f"\n{table(measured)}\n")
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes, seed {arguments.seed}. Look at {page}")


def _train(method: str, arguments: argparse.Namespace, story: QuickstartProgress) -> None:
    config = recipes.get_config(method).to_dict() | {"seed": arguments.seed}
    if arguments.steps is not None:
        config |= {"steps": arguments.steps}
        config["optimizer"]["warmup"] = arguments.steps // 10
    data = registry.load(config["data"]["source"])
    config = runs.resolve_config(config, data, devices=jax.device_count())
    workdir = arguments.workdir / method
    there = store.latest_step(workdir / run_directory.CHECKPOINTS) or 0
    if run_directory.check_same(workdir, config) and there:
        story.say(f"{workdir} has {there} of {config['steps']} steps already")
        story.advance(SECONDS[method]["train"] * there / config["steps"], method)
    listener = story.training(method, config["steps"], SECONDS[method]["train"])
    with signals.gently(lambda text: story.say(f"{method}: {text}")) as asked:
        reached, signal = runs.train(config, data, workdir, listener._replace(stop=asked))
    if reached < config["steps"]:
        raise signals.Interrupted(signal, f"saved {method} at step {reached}; the same command goes on")


def _evaluate(workdir: Path, story: QuickstartProgress) -> dict[str, Evaluation]:
    """Measures all three; BYOV against the two others."""
    company = [f"--baseline={workdir / 'byol'}", f"--supervised={workdir / 'supervised_bbb'}"]
    measured = {}
    alone = ["--features=student"]  # pixels and the untrained network are measured once, beside BYOV
    for method, more in (("byol", alone), ("supervised_bbb", alone), ("byov", company)):
        parts = [part for part in SECONDS[method] if part != "train"]
        arguments = evaluate.parse(
            [f"--run={workdir / method}", f"--only={','.join(parts)}", "--labels=", *more]
        )
        progress = story.parts(method, SECONDS[method])
        measured[method], _ = evaluate.evaluate(arguments, progress)
    return measured


def table(measured: dict[str, Evaluation]) -> str:
    """Accuracy and calibration of each method; raw pixels and the untrained network under the same probe."""
    columns = ("top1", "ece", "reliability", "nll")
    header = ("accuracy", "ECE", "Brier rel.", "NLL", "kNN 20")
    images = f"{len(measured['byov'].data.test.label):,} test images"
    lines = [f"{images:34}" + "".join(f"{name:>12}" for name in header)]
    for method, name in (("byol", "BYOL"), ("byov", "BYOV"), ("supervised_bbb", "supervised BBB")):
        numbers: dict[str, Any] = measured[method].read("calibration") or {}
        neighbours = (measured[method].read("probe") or {}).get("accuracy", {})
        modes = {"mean": "mean weights", "mc": f"{numbers['draws']} draws"}
        for mode, label in modes.items():
            if method == "byol" and mode == "mc":
                continue
            values = [numbers[mode][column]["value"] for column in columns]
            row = {"mean": "student mean", "mc": "student MC"}[mode]
            near = f"{neighbours[row]['kNN 20']:12.1%}" if row in neighbours else ""
            label = name if method == "byol" else f"{name}, {label}"
            shown = f"{values[0]:12.1%}{values[1]:12.1%}{values[2]:12.3f}{values[3]:12.3f}"
            lines.append(f"{label:34}{shown}{near}")
    accuracy = (measured["byov"].read("probe") or {})["accuracy"]
    for row, name in (("untrained", "untrained network"), ("raw pixels", "raw pixels")):
        lines.append(f"{name:34}{accuracy[row]['linear']:12.1%}{'':36}{accuracy[row]['kNN 20']:12.1%}")
    return "\n".join(lines)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = command.parser("quickstart", __doc__)
    parser.add_argument("--steps", type=int, help="optimizer steps of each training (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0, help="decides everything random (default: 0)")
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("runs/quickstart"),
        metavar="DIR",
        help="where runs and report are kept (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    if arguments.steps is not None and arguments.steps < 2:
        parser.error(f"--steps={arguments.steps} must be at least 2")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
