"""Cost of the posterior: compilation, time and memory of BYOV's training step relative to BYOL's.

    python -m benchmarks.step [--case=small --case=vit_ti16] [--repeats=15] [--json=FILE]

For each case both steps are compiled, then run alternately in one process; the ratio is the median over pairs
of consecutive runs, which cancels drifts of the machine's speed. Compilation is measured in CPU seconds, the
median of several, and by the instructions of the optimised program. Both are whole training steps with the
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
    "deep": Case(
        "ViT width 64, depth 12, patch 4 at 32 px, heads 256-64, batch 128",
        lambda: networks.Student(
            networks.ViT(patch=4, width=64, depth=12, heads=4, pool="mean", positions="sincos"),
            networks.MLP((256, 64)),
            networks.MLP((256, 64)),
        ),
        images.small_gray(),
        (128, 32, 32, 1),
    ),
    "vit_ti16": Case(
        "ViT-Ti/16 at 224 px, heads 4096-256, batch 32",
        lambda: networks.Student(networks.vit("Ti/16"), networks.MLP((4096, 256)), networks.MLP((4096, 256))),
        images.imagenet(),
        (32, 224, 224, 3),
    ),
}


class Compiled(NamedTuple):
    """A compiled step and its state, the CPU seconds that it took, its instructions and temporary memory."""

    step: Any
    state: byov.State
    cpu_seconds: float
    instructions: int
    temporary_bytes: int


def main() -> None:
    """Parse the command line, measure and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=list(CASES), help="which cases (default: all)")
    parser.add_argument("--repeats", type=int, default=15, help="timed pairs of steps per case (default: 15)")
    parser.add_argument("--compilations", type=int, default=3, help="of each step (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="also write the result to this file")
    arguments = parser.parse_args()
    for name in ("repeats", "compilations"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name}={getattr(arguments, name)} must be at least 1")

    counts = arguments.repeats, arguments.compilations
    result = {name: measure(CASES[name], *counts) for name in arguments.case or CASES}
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(text + "\n")


def measure(case: Case, repeats: int, compilations: int) -> dict[str, Any]:
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
    steps = {name: compiled(method, batch, key, compilations) for name, method in methods.items()}
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
        "compile_ratio": round(steps["byov"].cpu_seconds / steps["byol"].cpu_seconds, 2),
        "instruction_ratio": round(steps["byov"].instructions / steps["byol"].instructions, 2),
        **{
            name: {
                "step_seconds": round(statistics.median(seconds[name][1:]), 4),
                "compile_cpu_seconds": round(step.cpu_seconds, 2),
                "instructions": step.instructions,
                "peak_temporary_mib": round(step.temporary_bytes / 2**20, 1),
            }
            for name, step in steps.items()
        },
    }


def compiled(method: byov.methods.Method, batch: byov.Batch, key: jax.Array, times: int) -> Compiled:
    """Compile a step ahead of time, with its state donated, a number of times."""
    state = method.init(key, batch)
    seconds = []
    for _ in range(times):
        jax.clear_caches()  # or the second compilation would be none
        lowered = jax.jit(method.step, donate_argnums=0).lower(state, batch, key)
        start = time.process_time()
        step = lowered.compile()
        seconds.append(time.process_time() - start)
    memory: Any = step.memory_analysis()
    return Compiled(
        step, state, statistics.median(seconds), instructions(step.as_text() or ""), memory.temp_size_in_bytes
    )


def instructions(program: str) -> int:
    """Count the instructions of a program's text."""
    return sum(" = " in line for line in program.splitlines())


if __name__ == "__main__":
    main()
