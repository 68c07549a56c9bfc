"""Train a config in a run directory: begin or go on, log, look at held-out images, save.

Everything random derives from (seed, step) and everything else is in the state, so a run that was stopped and
continued ends with the same numbers as one that was not.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from byov_jax.checkpoints import checkpointer, store
from byov_jax.data import load
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.distributed import processes
from byov_jax.distributed.runner import Runner
from byov_jax.errors import ImageError, RunError
from byov_jax.methods.objectives import Batch
from byov_jax.methods.step import State
from byov_jax.training import build, feed, loop, run_directory
from byov_jax.training import config as validate
from byov_jax.training.callbacks import Callbacks as Callbacks
from byov_jax.training.metrics_log import MetricsLog
from byov_jax.training.session import AnyDataset, Session
from byov_jax.training.unreadable_images import UnreadableImages
from byov_jax.training.watchdog import Watchdog


class TrainResult(NamedTuple):
    """How a training ended: the step that it reached, and what a listener stopped it with, 0 for nothing."""

    step: int
    stop: int


def resolve_config(config: dict[str, Any], data: AnyDataset, *, devices: int = 1) -> dict[str, Any]:
    """The complete config, its data filled in, checked; a ValueError of one line says what is wrong."""
    config = build.complete(config)
    config["data"] |= {
        "size": len(data.train.image),
        "image": tuple(data.train.image.shape[1:]),
        "classes": len(data.classes),
        "digest": load.digest(data.train, data.test),
    }
    validate.check(config, devices=devices)
    network = build.network(config)
    method = build.method(config, network)
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), build.batch(config))
    state = jax.eval_shape(method.init, jax.random.key(0), example)  # the network must take the views
    _check_images(config, network, state)
    return config


def _check_images(config: dict[str, Any], network: Any, state: State) -> None:
    """The network must also take the images as they are, which it is looked at with."""
    variables = {"params": state.posterior.mean, **state.stats}
    image = jax.ShapeDtypeStruct((1, *config["data"]["image"]), jnp.float32)
    try:
        jax.eval_shape(network.apply, variables, image)
    except Exception as error:  # flax's errors have no common kind that says no more than this
        size, shape = config["views"].get("size"), "x".join(map(str, config["data"]["image"]))
        reason = " ".join(str(error).split())
        raise ValueError(
            f"config.views.size={size}: a network for such views does not take the images, {shape}: "
            f"set config.views.size to their side, or config.data.resize ({reason[:200]})"
        ) from None


def train(
    config: dict[str, Any],
    data: AnyDataset,
    workdir: Path,
    listener: Callbacks | None = None,
    *,
    tensorboard: bool = False,
) -> TrainResult:
    """Trains to the end, or to where a listener stops it.

    Args:
      config: from `prepare`.
      data: the training images, and test images that the monitor looks at.
      workdir: an empty or new directory, or one that holds this run, which then goes on.
      listener: hears how it goes.
      tensorboard: also write TensorBoard events, to workdir/tensorboard.
    """
    listener = listener or Callbacks()
    folder = workdir / run_directory.CHECKPOINTS
    processes.run_on_main(lambda: run_directory.create_or_open(workdir, config))
    processes.run_on_main(lambda: store.remove_leftovers(folder))
    runner = build.runner(config)
    keys = loop.keys(config["seed"], config["prng"], runner.everywhere)
    saved = checkpointer.restore_newest(folder, runner.like(), warn=listener.warning)
    step = 0 if saved is None else int(saved.step)
    placed = runner.start(keys.init) if saved is None else runner.place(saved)
    # Before the first checkpoint nothing counts, not even the line of step 0, which is written again.
    journal = None
    if processes.is_main():
        journal = MetricsLog(workdir, step=step or -1, tensorboard=tensorboard, warn=listener.warning)
    bad = UnreadableImages(workdir, listener.warning)
    session = Session(config, runner, data, workdir, journal, listener, bad, step)
    batches = _batches(config, runner, data, step, bad)
    stop = 0
    try:
        with Watchdog(config["watchdog"], listener.warning) as watchdog:
            if step == 0:
                session.look(0, placed, {})
            watched = _watched(batches, watchdog)
            for progress in loop.run_steps(runner, placed, watched, keys.steps, first=step):
                step, placed = progress.step, progress.placed
                listener.step(step)
                watchdog.now(None)
                session.after(progress)
                stop = session.stops(step)
                if stop:
                    break
            session.settle(step, placed)
    except ImageError as error:
        remedy = ", or set config.data.on_error=replace" if config["data"]["on_error"] == "raise" else ""
        raise RunError(f"{error}: repair the file{remedy}") from None
    finally:
        batches.close()
        session.close()
    return TrainResult(step, stop)


def _watched(batches: Iterator[Batch], watchdog: Watchdog) -> Iterator[Batch]:
    """The same batches; while one is waited for, and while a step is computed, the watchdog knows."""
    watchdog.now("waiting for images: reading, decoding or cropping them does not go on")
    for number, batch in enumerate(batches):
        # The first step is compiled, which takes as long as it takes.
        watchdog.now("computing a step: a device or another process does not answer" if number else None)
        yield batch
        watchdog.now("waiting for images: reading, decoding or cropping them does not go on")


def _batches(
    config: dict[str, Any], runner: Runner, data: AnyDataset, first: int, bad: UnreadableImages
) -> Generator[Batch]:
    """What the steps after `first` are trained on."""
    order = {key: config[key] for key in ("seed", "batch_size", "steps")} | {"first": first}
    image = data.train.image
    if not isinstance(image, LazyImages):
        return feed.from_memory(runner, Batch(image, data.train.label), **order)
    return feed.from_stream(
        runner,
        image.source,
        build.views(config).first,
        crops=build.crops(config),
        labelled=bool(data.classes),
        workers=config["data"]["workers"],
        on_error=config["data"]["on_error"],
        report=bad.add,
        **order,
    )
