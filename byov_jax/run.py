"""Train a config in a run directory: begin or go on, log, look at held-out images, save.

Everything random derives from (seed, step) and everything else is in the state, so a run that was stopped and
continued ends with the same numbers as one that was not.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from byov_jax.data import named
from byov_jax.data.decoded import Decoded
from byov_jax.data.records import ImageError
from byov_jax.session import AnyDataset, Session
from byov_jax.session import Listener as Listener
from byov_jax.train import checkpoint, directory, feed, loop, parallel, processes, recipe, shelf, validate
from byov_jax.train.bad_images import BadImages
from byov_jax.train.directory import RunError
from byov_jax.train.journal import Journal
from byov_jax.train.objectives import Batch
from byov_jax.train.parallel import Runner
from byov_jax.train.step import State
from byov_jax.train.watchdog import Watchdog


class Reached(NamedTuple):
    """How a training ended: the step that it reached, and what a listener stopped it with, 0 for nothing."""

    step: int
    stop: int


def prepare(config: dict[str, Any], data: AnyDataset, *, devices: int = 1) -> dict[str, Any]:
    """The complete config, its data filled in, checked; a ValueError of one line says what is wrong."""
    config = recipe.complete(config)
    config["data"] |= {
        "size": len(data.train.image),
        "image": tuple(data.train.image.shape[1:]),
        "classes": len(data.classes),
        "digest": named.digest(data.train, data.test),
    }
    validate.check(config, devices=devices)
    network = recipe.network(config)
    method = recipe.method(config, network)
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), recipe.batch(config))
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
    listener: Listener | None = None,
    *,
    tensorboard: bool = False,
) -> Reached:
    """Trains to the end, or to where a listener stops it.

    Args:
      config: from `prepare`.
      data: the training images, and test images that the monitor looks at.
      workdir: an empty or new directory, or one that holds this run, which then goes on.
      listener: hears how it goes.
      tensorboard: also write TensorBoard events, to workdir/tensorboard.
    """
    listener = listener or Listener()
    folder = workdir / directory.CHECKPOINTS
    processes.first_does(lambda: claim(workdir, config))
    processes.first_does(lambda: shelf.clean(folder))
    runner = parallel.runner(config)
    keys = loop.keys(config["seed"], config["prng"], runner.everywhere)
    saved = checkpoint.newest(folder, runner.like(), warn=listener.warning)
    step = 0 if saved is None else int(saved.step)
    placed = runner.start(keys.init) if saved is None else runner.place(saved)
    # Before the first checkpoint nothing counts, not even the line of step 0, which is written again.
    journal = None
    if processes.is_first():
        journal = Journal(workdir, step=step or -1, tensorboard=tensorboard, warn=listener.warning)
    bad = BadImages(workdir, listener.warning)
    session = Session(config, runner, data, workdir, journal, listener, bad, step)
    batches = _batches(config, runner, data, step, bad)
    stop = 0
    try:
        with Watchdog(config["watchdog"], listener.warning) as watchdog:
            if step == 0:
                session.look(0, placed, {})
            watched = _watched(batches, watchdog)
            for progress in loop.run(runner, placed, watched, keys.steps, first=step):
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
    return Reached(step, stop)


def _watched(batches: Iterator[Batch], watchdog: Watchdog) -> Iterator[Batch]:
    """The same batches; while one is waited for, and while a step is computed, the watchdog knows."""
    watchdog.now("waiting for images: reading, decoding or cropping them does not go on")
    for number, batch in enumerate(batches):
        # The first step is compiled, which takes as long as it takes.
        watchdog.now("computing a step: a device or another process does not answer" if number else None)
        yield batch
        watchdog.now("waiting for images: reading, decoding or cropping them does not go on")


def _batches(
    config: dict[str, Any], runner: Runner, data: AnyDataset, first: int, bad: BadImages
) -> Generator[Batch]:
    """What the steps after `first` are trained on."""
    order = {key: config[key] for key in ("seed", "batch_size", "steps")} | {"first": first}
    image = data.train.image
    if not isinstance(image, Decoded):
        return feed.resident(runner, Batch(image, data.train.label), **order)
    return feed.streamed(
        runner,
        image.source,
        recipe.views(config).first,
        crops=recipe.crops(config),
        labelled=bool(data.classes),
        workers=config["data"]["workers"],
        on_error=config["data"]["on_error"],
        report=bad.add,
        **order,
    )


def claim(workdir: Path, config: dict[str, Any]) -> bool:
    """Makes the run directory, or finds this run in it; returns whether it was there.

    A directory that holds anything else or cannot be written is a RunError. What may differ in the config of
    a run that goes on, such as the place of its data, is from now on as it is here.
    """
    try:
        there = directory.check_same(workdir, config)
        if not there:
            directory.create(workdir, config)
        elif directory.read_config(workdir) != recipe.complete(config):
            directory.write_json(workdir / directory.CONFIG, config)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"workdir {workdir} cannot be written ({reason}): choose another --workdir") from None
    return there
