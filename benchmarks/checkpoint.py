"""Measure the cost of saving: training with checkpoints over training without, in one process.

    python -m benchmarks.checkpoint [--every=50] [--repeats=5] [--json=FILE]

The same compiled step runs in blocks of `every` steps, alternately with one save in the middle of the block
and without; a block with a save ends when the checkpoint is complete on disk, with its checksums. The result
is the median of the ratios of neighbouring blocks, so that a change in machine speed cancels.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import byov_jax as byov
from byov_jax import images, networks
from byov_jax.checkpoints import checkpointer

SIDE, BATCH = 112, 16


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints (default: 50)")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of blocks (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write the result here as well")
    arguments = parser.parse_args()
    if arguments.every < 2 or arguments.repeats < 1:
        parser.error("--every must be at least 2 and --repeats at least 1")
    text = json.dumps(measure(arguments.every, arguments.repeats), indent=2)
    print(text)
    if arguments.json:
        Path(arguments.json).write_text(text + "\n")


def measure(every: int, repeats: int) -> dict[str, Any]:
    """Run blocks of steps, alternately with a save and without."""
    student = networks.Student(networks.vit("Ti/16"), networks.MLP((4096, 256)), networks.MLP((4096, 256)))
    method = byov.methods.byov(
        student,
        byov.optimizers.adamw(1e-4),
        views=images.imagenet(SIDE),
        tau=0.99,
        beta=0.3,
        dataset_size=1000,
    )
    rng = np.random.default_rng(0)
    batch = byov.Batch(jax.device_put(rng.integers(0, 256, (BATCH, SIDE, SIDE, 3), np.uint8)))
    key = jax.random.key(0)
    state = method.init(key, batch)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    step = jax.jit(method.step, donate_argnums=0)
    state, info = step(state, batch, key)
    jax.block_until_ready(info)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    calls: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        writer = checkpointer.CheckpointWriter(Path(folder))
        writer.save(2 * repeats, state)  # compiles the check for NaN
        writer.wait()
        for block in range(2 * repeats):
            saves = block % 4 in (1, 2)  # either kind is first in every other pair
            start = time.perf_counter()
            for number in range(every):
                state, info = step(state, batch, key)
                jax.block_until_ready(info)
                if saves and number == every // 2:
                    before = time.perf_counter()
                    writer.save(block, state)
                    calls.append(time.perf_counter() - before)
            writer.wait()
            seconds[saves].append(time.perf_counter() - start)
            if writer.failure:
                raise SystemExit(writer.failure)
        writer.close()
    ratios = [slow / fast for fast, slow in zip(seconds[False], seconds[True], strict=True)]
    return {
        "case": f"BYOV, ViT-Ti/16 at {SIDE} px, heads 4096-256, batch {BATCH}",
        "devices": [device.device_kind for device in jax.devices()],
        "state_mib": round(size / 2**20, 1),
        "steps_between_saves": every,
        "seconds_between_saves": round(statistics.median(seconds[False]), 1),
        "step_seconds": round(statistics.median(seconds[False]) / every, 4),
        "blocking_seconds_of_a_save": round(statistics.median(calls), 4),
        "repeats": repeats,
        "loop_ratio": round(statistics.median(ratios), 4),
        "loop_ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
    }


if __name__ == "__main__":
    main()
