"""Time 30 Monte-Carlo draws against 30 deterministic forward passes, alternating in one process.

    python -m benchmarks.predictive [--repeats=5] [--json=FILE]

Prints the median and range of the ratios of neighbouring measurements: the cost of drawing the weights.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import byov_jax as byov
from byov_jax import networks

CASES = {
    "small": (
        networks.ViT(patch=7, width=128, depth=3, heads=4, pool="mean", positions="sincos"),
        (28, 28, 1),
        1000,
    ),
    "vit_ti16": (networks.vit("Ti/16"), (224, 224, 3), 64),
}
DRAWS = 30


def main(argv: list[str] | None = None) -> int:
    """Time the chosen networks and print the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predictive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", choices=CASES, action="append", help="networks to time (default: small)")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of measurements (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1:
        parser.error(f"--repeats={arguments.repeats} must be at least 1")
    results = {}
    for name in arguments.case or ["small"]:
        result = results[name] = measure(name, arguments.repeats)
        print(
            f"{name}: {DRAWS} draws cost {result['ratio']:.3f} x {DRAWS} forward passes "
            f"(range {result['lowest']:.3f} to {result['highest']:.3f} of {arguments.repeats}); "
            f"{result['forward_seconds']:.2f} s for {DRAWS} passes over {result['images']} images",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def measure(name: str, repeats: int) -> dict[str, float]:
    """Time both alternately and return the ratios of the pairs."""
    network, shape, images = CASES[name]
    x = jnp.asarray(np.random.default_rng(0).random((images, *shape)), jnp.float32)
    q = byov.posterior.init(network.init(jax.random.key(0), x[:1])["params"])

    def apply(params, x):
        return network.apply({"params": params}, x)

    forward = jax.jit(apply)
    size = byov.predictive.batch_size.choose(apply, q.mean, x, 1).examples
    batches = [x[i : i + size] for i in range(0, images, size)]

    def deterministic():
        return [[forward(q.mean, batch) for batch in batches] for _ in range(DRAWS)]

    def monte_carlo():
        return byov.predictive.moments(jax.random.key(1), q, apply, x, DRAWS)

    seconds: dict[str, list[float]] = {"deterministic": [], "monte_carlo": []}
    for repeat in range(repeats + 1):
        for function in (deterministic, monte_carlo):
            start = time.perf_counter()
            jax.block_until_ready(function())
            if repeat:  # the first compiles
                seconds[function.__name__].append(time.perf_counter() - start)
    ratios = [mc / d for mc, d in zip(seconds["monte_carlo"], seconds["deterministic"], strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "forward_seconds": statistics.median(seconds["deterministic"]),
        "images": images,
        "weights": byov.posterior.size(q),
    }


if __name__ == "__main__":
    sys.exit(main())
