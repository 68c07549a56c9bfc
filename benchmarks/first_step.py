"""Time from the start of a process to its first training step, for BYOL and BYOV: cold, and with a cache.

    python -m benchmarks.first_step [--repeats=5] [--json=FILE]

The recipe is the quickstart's. Every repeat is two processes of each method: one with an empty compilation
cache, and one with what that left. Parts are in CPU seconds and in wall seconds, the medians:

  import     the interpreter, JAX and byov_jax
  data       read the images, check the config against them
  init       the initial state
  monitor    the untrained network on held-out images, as a training logs it
  trace      the training step to a jaxpr
  lower      the jaxpr to StableHLO
  compile    StableHLO to a program, or load it
  run        the first step
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

METHODS = ("byol", "byov")

Seconds = dict[str, list[float]]
"""CPU and wall seconds by part, in the order in which they begin."""


def main() -> None:
    """Parse the command line, measure and print JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=5, help="processes of each kind (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="also write the result to this file")
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        method, cache, start = arguments.process
        print(json.dumps(first_step(method, cache, float(start))))
        return
    if arguments.repeats < 1:
        parser.error(f"--repeats={arguments.repeats} must be at least 1")
    text = json.dumps(measure(arguments.repeats), indent=2)
    print(text)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(text + "\n")


def measure(repeats: int) -> dict[str, Any]:
    """Start the processes, those of all methods in turn."""
    found: dict[tuple[str, str], list[Seconds]] = {}
    for _ in range(repeats):
        for method in METHODS:
            with tempfile.TemporaryDirectory() as cache:
                for kind in ("cold", "warm"):
                    found.setdefault((method, kind), []).append(in_a_process(method, cache))
    return {
        "case": "recipe quickstart",
        "repeats": repeats,
        **{f"{method}, {kind}": summary(runs) for (method, kind), runs in found.items()},
    }


def in_a_process(method: str, cache: str) -> Seconds:
    """Take the first step in a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.first_step", "--process", method, cache, str(time.time())]
    return json.loads(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)


def summary(runs: list[Seconds]) -> dict[str, Any]:
    """Return the median of every part, and of the sum of all with its range."""
    result: dict[str, Any] = {}
    for index, name in enumerate(("cpu_seconds", "wall_seconds")):
        sums = [sum(part[index] for part in run.values()) for run in runs]
        result[name] = {
            "in_all": round(statistics.median(sums), 2),
            "range": [round(min(sums), 2), round(max(sums), 2)],
            **{part: round(statistics.median(run[part][index] for run in runs), 2) for part in runs[0]},
        }
    return result


def first_step(method: str, cache: str, start: float) -> Seconds:
    """Do what `byov train` does until the first step is done, part by part.

    Args:
      method: the variant of the recipe.
      cache: directory of the compilation cache.
      start: when the process was started, in seconds since the epoch.
    """
    seconds: Seconds = {}
    import jax

    from byov_jax.cli import compilation
    from byov_jax.methods.objectives import Batch
    from byov_jax.recipes import quickstart
    from byov_jax.training import build, feed, loop, monitor, trainer
    from byov_jax.training.config import Config

    seconds["import"] = [time.process_time(), time.time() - start]
    with timed(seconds, "data"):
        config = Config.parse(quickstart.get_config(method))
        data = build.dataset(config)
        config = trainer.resolve_config(config, data, devices=jax.device_count())
    compilation.enable(cache)
    with timed(seconds, "init"):
        runner = build.runner(config)
        keys = loop.keys(config.seed, config.prng, runner.replicated)
        placed = jax.block_until_ready(runner.init(keys.init))
        train = Batch(data.train.image, data.train.label)
        order = {"seed": config.seed, "batch_size": config.batch_size, "first": 0, "steps": 1}
        (batch,) = feed.from_memory(runner, train, **order)
    with timed(seconds, "monitor"):
        count = config.monitor_images
        state = runner.get_state(placed)
        monitor.held_out(build.network(config), build.views(config), state, data, runner.mesh, images=count)
    with loop.paused_collection():
        with timed(seconds, "trace"):
            traced = runner.step.trace(placed, batch, keys.steps)
        with timed(seconds, "lower"):
            lowered = traced.lower()
        with timed(seconds, "compile"):
            step = lowered.compile()
        with timed(seconds, "run"):
            jax.block_until_ready(step(placed, batch, keys.steps))
    return seconds


@contextmanager
def timed(seconds: Seconds, part: str) -> Iterator[None]:
    """Note the CPU and wall seconds of a part."""
    cpu, wall = time.process_time(), time.perf_counter()
    yield
    seconds[part] = [time.process_time() - cpu, time.perf_counter() - wall]


if __name__ == "__main__":
    main()
