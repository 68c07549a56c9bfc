"""Measure what the running statistics of batch norm change in an evaluation: ours against DeepMind's.

    python -m benchmarks.batch_statistics [--seeds=3] [--steps=200] [--json=FILE]

Ours are updated once in a step, with the mean over both views; DeepMind's BYOL updates them for each view in
turn. No step reads them: one training of a small ResNet keeps both, so that the same weights are evaluated
with either. Printed are accuracies on the embedded test images, and by how much features differ: root mean
square over the standard deviation between images.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import byov_jax as byov
from byov_jax import images, methods, networks
from byov_jax.data.sources import fashion_mnist
from byov_jax.evaluation import knn, linear_probe
from byov_jax.methods import Bayes, objectives
from byov_jax.training.feed import batch_indices

BATCH = 64
CLASSES = 10
REFERENCE = "reference"
VIEWS = images.small_gray()


def main(argv: list[str] | None = None) -> int:
    """Train and evaluate with each seed, and print the means and ranges over the seeds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batch_statistics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--method", choices=["byol", "byov"], action="append", help="default: both")
    parser.add_argument("--seeds", type=int, default=3, help="trainings per method (default: 3)")
    parser.add_argument("--steps", type=int, default=200, help="steps of a training (default: 200)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    arguments = parser.parse_args(argv)
    for name in ("seeds", "steps"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name}={getattr(arguments, name)} must be at least 1")
    results = {}
    for method in arguments.method or ["byol", "byov"]:
        runs = [measure(method, seed, arguments.steps) for seed in range(arguments.seeds)]
        results[method] = runs
        for part in runs[0]:
            numbers = (f"{name} {_summary([run[part][name] for run in runs])}" for name in runs[0][part])
            print(f"{method}, {part}: {'; '.join(numbers)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def measure(name: str, seed: int, steps: int) -> dict[str, dict[str, float]]:
    """Train once and evaluate student and teacher with either statistics."""
    student = networks.Student(
        networks.ResNet((1, 1), False, width=8, stem="small"),
        networks.MLP((128, 32)),
        networks.MLP((128, 32)),
    )
    state = train(student, name, seed, steps)
    weights = {"student": state.posterior.mean, "teacher": state.teacher.params}
    ours = {"student": state.stats["batch_stats"], "teacher": state.teacher.stats["batch_stats"]}
    return {
        part: compare(student, weights[part], ours[part], state.stats[REFERENCE][part]) for part in weights
    }


def train(student: networks.Student, name: str, seed: int, steps: int) -> Any:
    """Train on the embedded images; the last state has the reference's statistics beside ours."""
    data = fashion_mnist.load().train
    method = methods.from_objective(
        student,
        with_reference(student),
        byov.optimizers.adamw(byov.schedules.warmup_cosine(2e-3, steps // 20, steps)),
        views=VIEWS,
        tau=byov.schedules.ema_cosine(0.95, steps),
        bayes=Bayes(dataset_size=len(data.image), beta=0.3) if name == "byov" else None,
    )
    key = jax.random.key(seed)
    state = method.init(key, byov.Batch(jnp.asarray(data.image[:BATCH])))
    kept = {"student": state.stats["batch_stats"], "teacher": state.teacher.stats["batch_stats"]}
    state = state._replace(stats=state.stats | {REFERENCE: kept})
    step = jax.jit(method.step)
    for index in range(steps):
        rows = batch_indices(seed, index, len(data.image), BATCH)
        state, _ = step(state, byov.Batch(jnp.asarray(data.image[rows])), key)
    return state


def with_reference(student: networks.Student) -> Callable:
    """Return BYOL's objective that also updates statistics as DeepMind's implementation does."""
    byol = objectives.bootstrap(student)

    def objective(weights, inputs):
        kept, own = inputs.stats[REFERENCE], {"batch_stats": inputs.stats["batch_stats"]}
        loss, outcome = byol(weights, inputs._replace(stats=own))
        updated = {
            "student": in_turn(student, weights, kept["student"], inputs.views, "__call__"),
            "teacher": in_turn(
                student, (inputs.teacher.params,) * 2, kept["teacher"], inputs.views, "project"
            ),
        }
        return loss, outcome._replace(stats=outcome.stats | {REFERENCE: jax.lax.stop_gradient(updated)})

    return objective


def in_turn(student, weights, stats, views, method: str):
    """Return statistics updated with one view after the other."""
    for params, x in zip(weights, views, strict=True):
        variables = {"params": params, "batch_stats": stats}
        _, updated = student.apply(variables, x, train=True, mutable=["batch_stats"], method=method)
        stats = updated["batch_stats"]
    return stats


def compare(student: networks.Student, params, ours, reference) -> dict[str, float]:
    """Evaluate the encoder's features with either statistics."""
    data = fashion_mnist.load()

    @jax.jit
    def encode(stats, x):
        x = (x / 255.0 - VIEWS.mean[0]) / VIEWS.std[0]
        return student.apply({"params": params, "batch_stats": stats}, x, method="project")[0]

    def embed(stats, image):
        batches = np.split(image.astype(np.float32), len(image) // 500)
        return np.concatenate([encode(stats, x) for x in batches])

    found, features = {}, {}
    for name, stats in (("ours", ours), ("DeepMind's", reference)):
        bank, queries = embed(stats, data.train.image), embed(stats, data.test.image)
        near = knn.probs(bank, data.train.label, queries, classes=CLASSES)
        probe = linear_probe.probs(linear_probe.fit(bank, data.train.label, classes=CLASSES), queries)
        for measured, probs in (("nearest neighbours", near), ("linear probe", probe)):
            found[f"{measured}, {name}"] = 100 * float(np.mean(np.argmax(probs, 1) == data.test.label))
        features[name] = queries
    difference = np.sqrt(np.mean(np.square(features["ours"] - features["DeepMind's"])))
    spread = np.sqrt(np.mean(np.var(features["DeepMind's"], axis=0)))
    return found | {"difference of features": float(difference / spread)}


def _summary(values: list[float]) -> str:
    return f"{statistics.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    sys.exit(main())
