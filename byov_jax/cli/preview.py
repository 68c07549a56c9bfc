"""Preview a config before a long training: `--dry_run` prints its plan, `--smoke` trains a small version."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from byov_jax.bayes import posterior
from byov_jax.data.loading import lazy
from byov_jax.errors import RunError
from byov_jax.methods.schedules import Schedule
from byov_jax.model import load
from byov_jax.training import build
from byov_jax.training.build import AnyDataset
from byov_jax.training.config import Config

PROGRESS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The fractions of a training at which `describe` shows the schedules."""

TRAIN, TEST = 64, 32
STEPS, BATCH, WIDTH = 4, 16, 16
"""The size of a smoke run."""


def describe(config: Config) -> str:
    """Describe a training in several lines: parameters, steps, memory, schedules."""
    data, steps, batch = config.data, config.steps, config.batch_size
    runner = build.runner(config)
    state = runner.abstract_state()
    memory = runner.step.lower(*runner.abstract_inputs()).compile().memory_analysis()
    epoch = data.size / batch
    step_memory = _mebibytes(memory.temp_size_in_bytes) if memory else "unknown"
    shape = "x".join(map(str, data.image))
    rows = [
        f"{config.method} on {data.source}: {data.size:,} images {shape}, {data.classes or 'no'} classes",
        f"{steps:,} steps of {batch} images: {steps / epoch:.1f} epochs of "
        f"{f'{epoch:,.1f}'.removesuffix('.0')} steps",
        "",
        "parameters",
        *(f"  {part:12} {_count(tree):>14,}" for part, tree in state.posterior.mean.items()),
        f"  {'in all':12} {_count(state.posterior.mean):>14,}, of them Bayesian "
        f"{posterior.size(state.posterior):,}",
        "",
        f"memory of a device, of {runner.mesh.size}",
        f"  {'state':12} {_mebibytes(_bytes_per_device(state)):>14}",
        f"  {'a step':12} {step_memory:>14} besides",
        f"  {'the images':12} {_mebibytes(data.size * math.prod(data.image)):>14}",
        "",
        f"{'step':>16} {'learning rate':>14} {'tau':>10} {'beta':>10}",
    ]
    schedules = (
        build.learning_rate_schedule(config),
        build.tau_schedule(config) if config.traits.has_teacher else None,
        build.beta_schedule(config) if config.traits.bayesian else None,
    )
    for progress in PROGRESS:
        step = round(progress * steps)
        rate, tau, beta = (_value_at(schedule, step) for schedule in schedules)
        rows.append(f"{f'{step:,} ({progress:.0%})':>16} {rate:>14} {tau:>10} {beta:>10}")
    return "\n".join(rows)


def _value_at(schedule: Schedule | None, step: int) -> str:
    return "-" if schedule is None else f"{float(schedule(step)):.5g}"


def _count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _bytes_per_device(tree: Any) -> int:
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


@contextmanager
def quick_compilation() -> Iterator[None]:
    """Compile with few optimizations, which take most of the time of a smoke run."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def shrink(config: Config, *, devices: int = 1) -> Config:
    """Return a config with the same method, prior, views and kind of network, but small and short."""
    small = {
        "encoder": _small_vit(config) if config.encoder.name == "vit" else _small_resnet(config),
        "projector": {"widths": (WIDTH, WIDTH)},
        "predictor": {"widths": (WIDTH, WIDTH)},
        "optimizer": {"warmup": 1},
        "steps": STEPS,
        "beta_steps": min(config.beta_steps, STEPS),
        "batch_size": -(-BATCH // devices) * devices,
        "accumulate": min(config.accumulate, 2),
        "dtype": "float32",
        "data": {"workers": 0},
        "log_every": 2,
        "monitor_every": STEPS,
        "save_every": STEPS,
    }
    values = config.to_dict()
    values["encoder"].pop("size", None)  # "B/16" also sets the width and the depth
    return Config.parse(values).updated(small)


def _small_vit(config: Config) -> dict[str, Any]:
    # Few different shapes: the noise of each is compiled on its own.
    small: dict[str, Any] = {"width": WIDTH, "depth": 1, "heads": 2, "mlp_width": WIDTH}
    size = config.encoder.to_dict().get("size")
    return small | {"patch": int(size.partition("/")[2])} if size else small


def _small_resnet(config: Config) -> dict[str, Any]:
    return {"depth": 18, "stages": (1, 1), "bottleneck": False, "width": 32}


def subset(data: AnyDataset) -> AnyDataset:
    """Return evenly spaced images of both splits, so that every class has a chance."""
    return data._replace(train=_subset(data.train, TRAIN), test=_subset(data.test, TEST))


def check_model(workdir: Path, data: AnyDataset) -> None:
    """Load the run, and check that probabilities or features under weight draws are finite."""
    model = load(workdir)
    image = data.test.image[:8]
    if model.supervised:
        outputs = np.asarray(model.predict(image, draws=2).probs)
    else:
        outputs = np.asarray(model.embed(image, draws=2 if model.bayesian else 0))
    if not np.isfinite(outputs).all():
        raise RunError("smoke: the trained network's outputs are not finite")


def _subset(images: Any, count: int) -> Any:
    rows = np.linspace(0, len(images.image) - 1, min(count, len(images.image))).astype(int)
    label = None if images.label is None else images.label[rows]
    return images._replace(image=lazy.take(images.image, rows), label=label)
