"""Train on the embedded images for a short while and see what was learned.

    python -m experiments.quickstart [--method=byov] [--steps=300] [--seed=0] [--workdir=runs/quickstart/byov]

A small vision transformer learns from 10,000 Fashion-MNIST images, without their labels unless the method is
supervised. A linear classifier on its frozen features is then compared with the same classifier on raw pixels
and on the features of the untrained network. The run is kept in the work directory, for

    python -m experiments.evaluate --run=runs/quickstart/byov
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import byov_jax as byov
from byov_jax.data import source
from byov_jax.data.dataset import Dataset
from byov_jax.evaluate import probe
from byov_jax.model import load, save_probe
from byov_jax.train import checkpoint, directory, loop, recipe
from experiments.configs import quickstart as recipes


def main() -> int:
    """Trains, probes and prints."""
    arguments = _arguments()
    start = time.perf_counter()
    config = recipes.get_config(arguments.method).to_dict()
    config["optimizer"]["warmup"] = arguments.steps // 10
    data = source.load(config["data"]["source"])
    config = recipe.complete(config | {"seed": arguments.seed, "steps": arguments.steps})
    config["data"] |= {
        "size": len(data.train.image),
        "image": data.train.image.shape[1:],
        "classes": len(data.classes),
    }
    workdir = arguments.workdir or Path("runs/quickstart") / arguments.method
    if checkpoint.latest(workdir / directory.CHECKPOINTS) is None:
        train(config, data, workdir)
    elif directory.read_config(workdir) != config:
        print(f"quickstart: {workdir} holds another run: choose another --workdir", file=sys.stderr)
        return 2
    else:
        print(f"{workdir} has been trained already")
    compare(workdir, data)
    print(f"\n{time.perf_counter() - start:.0f} s, seed {arguments.seed}; the run is in {workdir}")
    return 0


def train(config: dict[str, Any], data: Dataset, workdir: Path) -> None:
    """Runs the loop behind a progress bar, or plain lines without a terminal; saves the last state."""
    steps, size = config["steps"], config["batch_size"]
    print(f"{config['method']} on {len(data.train.image):,} images, {steps} steps of {size}", flush=True)
    directory.create(workdir, config)
    method = recipe.method(config, recipe.network(config))
    terminal = sys.stderr.isatty()
    bar = tqdm(total=steps, unit="step", disable=not terminal)
    for progress in loop.run(
        method,
        byov.Batch(*data.train),
        seed=config["seed"],
        steps=steps,
        batch_size=size,
        report_every=10 if terminal else 100,
    ):
        line = describe(progress.info)
        if terminal:
            bar.set_postfix_str(line)
            bar.update(progress.step - bar.n)
        else:
            print(f"step {progress.step:5}  {line}", flush=True)
    bar.close()
    checkpoint.save(workdir / directory.CHECKPOINTS, progress.step, progress.state)


def describe(info: byov.Info) -> str:
    """The last step in one line."""
    shown = ("loss", "cosine", "accuracy", "kl_per_weight", "beta", "embedding_std")
    values = {name: getattr(info, name) for name in shown}
    return "  ".join(f"{name} {float(value):.3f}" for name, value in values.items() if value is not None)


def compare(workdir: Path, data: Dataset) -> None:
    """Prints what a linear classifier makes of the features; keeps the one on the trained features."""
    model = load(workdir)
    rows = {
        "raw pixels": lambda image: image.reshape(len(image), -1).astype(np.float32) / 255.0,
        "untrained network": model.untrained().embed,
        "posterior mean" if model.bayesian else "trained network": model.embed,
    }
    print(f"\nlinear probe, {len(data.test.label):,} test images")
    for name, features in rows.items():
        fitted = probe.fit(features(data.train.image), data.train.label, classes=len(data.classes))
        accuracy = probe.score(fitted, features(data.test.image), data.test.label)
        print(f"  {name:22} {accuracy:6.2%}", flush=True)
    model = dataclasses.replace(model, probe=fitted)
    save_probe(workdir, model)
    if model.bayesian:
        probs = model.predict(data.test.image, draws=30).probs
        name = "own head, 30 draws" if model.supervised else "30 weight draws"
        print(f"  {name:22} {float(byov.metrics.top_k(probs, data.test.label, 1)):6.2%}")
        show_posterior(model.posterior)


def show_posterior(q: byov.Posterior) -> None:
    """Prints sigma and signal-to-noise ratio of each kernel."""
    layers = byov.layer_statistics(q)
    kernels = [path for path in layers if path.endswith("kernel")]
    print(f"\n{'posterior':42} {'mean sigma':>11} {'mean SNR':>9}")
    for path in kernels:
        print(f"  {path:40} {layers[path].sigma_mean:11.5f} {layers[path].snr_mean:9.2f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.quickstart",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--method", default="byov", choices=recipe.METHODS, help="default: byov")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="decides everything random (default: 0)")
    parser.add_argument(
        "--workdir", type=Path, metavar="DIR", help="where the run is kept (default: runs/quickstart/METHOD)"
    )
    arguments = parser.parse_args()
    if arguments.steps < 2:
        parser.error(f"--steps={arguments.steps} must be at least 2")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
