"""Train a config in a run directory: create or resume it, log, evaluate on held-out images, save.

Everything random derives from (seed, step) and everything else is in the state, so a run that was stopped and
resumed ends with the same numbers as one that was not.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from byov_jax.checkpoints import checkpointer, store
from byov_jax.data import digest
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.distributed import Runner, processes
from byov_jax.errors import ConfigError, ImageError, RunError
from byov_jax.methods.objectives import Batch
from byov_jax.methods.state import State
from byov_jax.training import build, earlier_runs, feed, loop, run_directory
from byov_jax.training.build import AnyDataset
from byov_jax.training.callbacks import Callbacks
from byov_jax.training.config import Config
from byov_jax.training.metrics_log import MetricsLog
from byov_jax.training.recorder import Recorder
from byov_jax.training.unreadable_images import UnreadableImages
from byov_jax.training.watchdog import Watchdog

WAITING = "waiting for images: reading, decoding or cropping them makes no progress"
COMPUTING = "computing a step: a device or another process does not answer"


class TrainResult(NamedTuple):
    """The step that a training reached, and the number with which a callback stopped it, 0 for none."""

    step: int
    stop: int


def resolve_config(config: Any, data: AnyDataset, *, devices: int = 1) -> Config:
    """Fill in what the data decide, and check that the config, any mapping, can be trained."""
    described = {
        "size": len(data.train.image),
        "image": tuple(data.train.image.shape[1:]),
        "classes": len(data.classes),
        "digest": digest.of_images(data.train, data.test),
    }
    config = config if isinstance(config, Config) else Config.parse(config)
    resolved = config.updated({"data": described})
    resolved.check_data(devices=devices)
    network = build.network(resolved)
    method = build.method(resolved, network)
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), build.batch(resolved))
    state = jax.eval_shape(method.init, jax.random.key(0), example)  # the network must take the views
    _check_image_shape(resolved, network, state)
    return resolved


def _check_image_shape(config: Config, network: Any, state: State) -> None:
    """Check that the network also takes whole images, on which it is evaluated."""
    variables = {"params": state.posterior.mean, **state.stats}
    image = jax.ShapeDtypeStruct((1, *config.data.image), jnp.float32)
    try:
        jax.eval_shape(network.apply, variables, image)
    except Exception as error:  # flax's errors have no base class narrower than this
        shape, reason = "x".join(map(str, config.data.image)), " ".join(str(error).split())
        raise ConfigError(
            f"config.views.size={config.views.size}: a network for such views does not take the images, "
            f"{shape}: set config.views.size to their side, or config.data.resize ({reason[:200]})"
        ) from None


def train(
    config: Config,
    data: AnyDataset,
    workdir: Path,
    callbacks: Callbacks | None = None,
    *,
    tensorboard: bool = False,
) -> TrainResult:
    """Train to the end, or until a callback stops it.

    Args:
      config: from `resolve_config`.
      data: the training images, and the test images for monitoring.
      workdir: a new or empty directory, or one that holds this run, which is resumed.
      callbacks: follow the training.
      tensorboard: also write TensorBoard events, to workdir/tensorboard.
    """
    callbacks = callbacks or Callbacks()
    folder = workdir / run_directory.CHECKPOINTS
    processes.run_on_main(lambda: run_directory.create_or_open(workdir, config))
    processes.run_on_main(lambda: store.remove_leftovers(folder))
    processes.run_on_main(lambda: earlier_runs.check_resumable(workdir, store.metadata(folder)))
    runner = build.runner(config)
    keys = loop.keys(config.seed, config.prng, runner.replicated)
    restored = checkpointer.restore_newest(folder, runner.abstract_state(), warn=callbacks.warning)
    first = 0 if restored is None else int(restored.step)
    placed = runner.init(keys.init) if restored is None else runner.put_state(restored)
    log = None
    if processes.is_main():
        # Without a checkpoint even the line of step 0 is written again.
        log = MetricsLog(workdir, step=first or -1, tensorboard=tensorboard, warn=callbacks.warning)
    unreadable = UnreadableImages(workdir, callbacks.warning)
    recorder = Recorder(config, runner, data, workdir, log, callbacks, unreadable, first)
    batches = _batches(config, runner, data, first, unreadable)
    stop = 0
    try:
        with Watchdog(config.watchdog, callbacks.warning) as watchdog:
            if first == 0:
                recorder.evaluate(0, placed, {})
            watched = _watched(batches, watchdog)
            for progress in loop.run_steps(
                runner, placed, watched, keys.steps, first=first, compiling=callbacks.compiling
            ):
                callbacks.step(progress.step)
                watchdog.expect(None)
                recorder.after_step(progress)
                stop = recorder.stop_requested(progress.step)
                first, placed = progress.step, progress.placed
                if stop:
                    break
            recorder.finish(first, placed)
    except ImageError as error:
        remedy = ", or set config.data.on_error=replace" if config.data.on_error == "raise" else ""
        raise RunError(f"{error}: repair the file{remedy}") from None
    finally:
        batches.close()
        recorder.close()
    return TrainResult(first, stop)


def _watched(batches: Iterator[Batch], watchdog: Watchdog) -> Iterator[Batch]:
    """Yield the same batches, and name to the watchdog what each wait is for."""
    watchdog.expect(WAITING)
    for number, batch in enumerate(batches):
        watchdog.expect(COMPUTING if number else None)  # the first step compiles, however long that takes
        yield batch
        watchdog.expect(WAITING)


def _batches(
    config: Config, runner: Runner, data: AnyDataset, first: int, unreadable: UnreadableImages
) -> Generator[Batch]:
    """Yield the batches of the steps after `first`."""
    order = {"seed": config.seed, "batch_size": config.batch_size, "steps": config.steps, "first": first}
    image = data.train.image
    if not isinstance(image, LazyImages):
        return feed.from_memory(runner, Batch(image, data.train.label), **order)
    return feed.from_stream(
        runner,
        image.source,
        build.views(config).first,
        crops=config.traits.views,
        labelled=bool(data.classes),
        workers=config.data.workers,
        on_error=config.data.on_error,
        report=unreadable.add,
        **order,
    )
