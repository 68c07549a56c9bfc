"""Cost of the posterior: time and memory of BYOV's training step relative to BYOL's.

    python -m benchmarks.step [--case=small --case=vit_ti16] [--repeats=7] [--json=FILE]

For each case both steps are compiled once, then run alternately in one process; the ratio is the median over
pairs of consecutive runs, which cancels drifts of the machine's speed. Both are whole training steps with the
same views, network and optimizer (AdamW); BYOV adds the weight draw, the KL and the log-variances' update.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import byov_jax as byov
from byov_jax import images, networks


class Case(NamedTuple):
    """A network, its views and a batch [batch, side, side, channels]."""

    title: str
    student: Callable[[], networks.Student]
    views: images.Views
    shape: tuple[int, int, int, int]


CASES = {
    "small": Case(
        "ViT width 96, depth 4, patch 7 at 28 px, heads 512-64, batch 256",
        lambda: networks.Student(
            networks.ViT(patch=7, width=96, depth=4, heads=3, pool="mean", positions="sincos"),
            networks.MLP((512, 64)),
            networks.MLP((512, 64)),
        ),
        images.small_gray(),
        (256, 28, 28, 1),
    ),
    "vit_ti16": Case(
        "ViT-Ti/16 at 224 px, heads 4096-256, batch 32",
        lambda: networks.Student(networks.vit("Ti/16"), networks.MLP((4096, 256)), networks.MLP((4096, 256))),
        images.imagenet(),
        (32, 224, 224, 3),
    ),
}


class Compiled(NamedTuple):
    """A compiled step, its state, compile time and peak temporary memory."""

    step: Any
    state: byov.State
    compile_seconds: float
    temporary_bytes: int


def main() -> None:
    """Parse the command line, measure and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=list(CASES), help="which cases (default: all)")
    parser.add_argument("--repeats", type=int, default=7, help="timed pairs of steps per case (default: 7)")
    parser.add_argument("--json", metavar="FILE", help="also write the result to this file")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats={arguments.repeats} must be at least 1")

    result = {name: measure(CASES[name], arguments.repeats) for name in arguments.case or CASES}
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(text + "\n")


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Compile both steps and time them alternately."""
    batch = byov.Batch(jax.device_put(np.random.default_rng(0).integers(0, 256, case.shape, np.uint8)))
    optimizer = byov.optimizers.adamw(1e-3)
    methods = {
        "byol": byov.methods.byol(case.student(), optimizer, views=case.views, tau=0.99),
        "byov": byov.methods.byov(
            case.student(), optimizer, views=case.views, tau=0.99, beta=1.0, dataset_size=10_000
        ),
    }
    key = jax.random.key(0)
    steps = {name: prepare(method, batch, key) for name, method in methods.items()}
    states = {name: step.state for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            states[name], info = step.step(states[name], batch, key)
            jax.block_until_ready((states[name], info))
            seconds[name].append(time.perf_counter() - start)

    ratios = [slow / fast for slow, fast in zip(seconds["byov"][1:], seconds["byol"][1:], strict=True)]
    return {
        "case": case.title,
        "devices": [device.device_kind for device in jax.devices()],
        "jax": jax.__version__,
        "bayesian_weights": byov.posterior.size(states["byov"].posterior),
        "repeats": repeats,
        "step_ratio": round(statistics.median(ratios), 4),
        "step_ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
        **{
            name: {
                "step_seconds": round(statistics.median(seconds[name][1:]), 4),
                "compile_seconds": round(step.compile_seconds, 2),
                "peak_temporary_mib": round(step.temporary_bytes / 2**20, 1),
            }
            for name, step in steps.items()
        },
    }


def prepare(method: byov.methods.Method, batch: byov.Batch, key: jax.Array) -> Compiled:
    """Compile a step ahead of time, with its state donated."""
    state = method.init(key, batch)
    start = time.perf_counter()
    step = jax.jit(method.step, donate_argnums=0).lower(state, batch, key).compile()
    seconds = time.perf_counter() - start
    memory: Any = step.memory_analysis()
    return Compiled(step, state, seconds, memory.temp_size_in_bytes)


if __name__ == "__main__":
    main()
