"""What a config is going to do: parameters, steps, memory, schedules; nothing is trained."""

import math
from typing import Any

import jax

from byov_jax.bayes import posterior
from byov_jax.methods import schedules
from byov_jax.training import build

PROGRESS = (0.0, 0.25, 0.5, 0.75, 1.0)


def describe(config: dict[str, Any]) -> str:
    """Several lines for a person to read."""
    data, steps, batch = config["data"], config["steps"], config["batch_size"]
    runner = build.runner(config)
    state = runner.like()
    memory = runner.step.lower(*runner.abstract()).compile().memory_analysis()
    epoch = data["size"] / batch
    pixels = data["size"] * math.prod(data["image"])
    rows = [
        f"{config['method']} on {data['source']}: {data['size']:,} images {_shape(data['image'])}, "
        f"{data['classes'] or 'no'} classes",
        f"{steps:,} steps of {batch} images: {steps / epoch:.1f} epochs of {_short(epoch)} steps",
        "",
        "parameters",
        *(f"  {part:12} {_count(tree):>14,}" for part, tree in state.posterior.mean.items()),
        f"  {'in all':12} {_count(state.posterior.mean):>14,}, of them Bayesian "
        f"{posterior.size(state.posterior):,}",
        "",
        f"memory of a device, of {runner.mesh.size}",
        f"  {'state':12} {_bytes(_size(state)):>14}",
        f"  {'a step':12} {_bytes(memory.temp_size_in_bytes) if memory else 'unknown':>14} besides",
        f"  {'the images':12} {_bytes(pixels):>14}",
        "",
        f"{'step':>16} {'learning rate':>14} {'tau':>10} {'beta':>10}",
    ]
    for progress in PROGRESS:
        step = round(progress * steps)
        rate, tau, beta = (_at(value, step) for value in _schedules(config))
        rows.append(f"{f'{step:,} ({progress:.0%})':>16} {rate:>14} {tau:>10} {beta:>10}")
    return "\n".join(rows)


def _schedules(config: dict[str, Any]) -> tuple[Any, Any, Any]:
    steps, optimizer = config["steps"], config["optimizer"]
    bayesian = config["method"] in ("byov", "supervised_bbb")
    has_teacher = config["method"] in ("byov", "byol")
    annealing = config["beta_steps"] or steps
    return (
        schedules.warmup_cosine(optimizer["learning_rate"], optimizer["warmup"], steps),
        schedules.ema_cosine(config["tau"], steps) if has_teacher else None,
        schedules.cosine(config["beta_start"], config["beta_end"], annealing) if bayesian else None,
    )


def _at(schedule: Any, step: int) -> str:
    return "-" if schedule is None else f"{float(schedule(step)):.5g}"


def _count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _size(tree: Any) -> int:
    """Bytes on one device."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def _bytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _short(number: float) -> str:
    return f"{number:,.1f}".removesuffix(".0")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
