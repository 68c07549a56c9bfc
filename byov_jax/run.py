"""Train a config in a run directory: begin or go on, log, look at held-out images, save.

Everything random derives from (seed, step) and everything else is in the state, so a run that was stopped and
continued ends with the same numbers as one that was not.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from byov_jax.bayes.statistics import layer_statistics
from byov_jax.data.dataset import Dataset, Images, Unlabelled
from byov_jax.evaluate import knn
from byov_jax.model import Model, from_state
from byov_jax.train import checkpoint, directory, loop, online, recipe, validate
from byov_jax.train.directory import RunError
from byov_jax.train.journal import Journal
from byov_jax.train.objectives import Batch
from byov_jax.train.step import Info, State

HELD_OUT = 1000
"""At most so many test images are looked at during training."""

BANK = 2000
"""At most so many training images are their possible neighbours."""

NEIGHBOURS = 20
AnyDataset = Dataset | Unlabelled
COLLAPSED = 0.05
"""An `embedding_std` below this is a collapse: all images have all but the same embedding."""


class Listener(NamedTuple):
    """What a caller hears of; the defaults are deaf.

    Attributes:
      step: called with the number of every step.
      line: called with every line of metrics.jsonl.
      warning: called with a text that must not be missed.
      stop: asked after every step; True saves the state and ends the training.
    """

    step: Callable[[int], None] = lambda step: None
    line: Callable[[dict[str, Any]], None] = lambda line: None
    warning: Callable[[str], None] = lambda text: None
    stop: Callable[[], bool] = lambda: False


def prepare(config: dict[str, Any], data: AnyDataset, *, devices: int = 1) -> dict[str, Any]:
    """The complete config, its data filled in, checked; a ValueError of one line says what is wrong."""
    config = recipe.complete(config)
    config["data"] |= {
        "size": len(data.train.image),
        "image": tuple(data.train.image.shape[1:]),
        "classes": len(data.classes),
    }
    validate.check(config, devices=devices)
    network = recipe.network(config)
    method = recipe.method(config, network)
    state = jax.eval_shape(method.init, jax.random.key(0), _batch(data))  # the network must take the views
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
) -> int:
    """Trains to the end, or to where the listener stops it; returns the step that was reached.

    Args:
      config: from `prepare`.
      data: the training images, and test images that the monitor looks at.
      workdir: an empty or new directory, or one that holds this run, which then goes on.
      listener: hears how it goes.
      tensorboard: also write TensorBoard events, to workdir/tensorboard.
    """
    listener = listener or Listener()
    claim(workdir, config)
    network = recipe.network(config)
    method = recipe.method(config, network)
    state = _newest(workdir, method, config, data)
    step = int(state.step)
    # Before the first checkpoint nothing counts, not even the line of step 0, which is written again.
    journal = Journal(workdir, step=step or -1, tensorboard=tensorboard)
    session = _Session(config, network, data, workdir, journal, listener)
    try:
        if step == 0:
            session.look(0, state, {})
        for progress in loop.run(
            method,
            _batch(data),
            seed=config["seed"],
            steps=config["steps"],
            batch_size=config["batch_size"],
            state=state,
            devices=jax.devices(),
        ):
            step = progress.step
            listener.step(step)
            session.after(progress)
            if listener.stop() and step < config["steps"]:
                session.save(step, progress.state)
                break
    finally:
        journal.close()
    return step


def claim(workdir: Path, config: dict[str, Any]) -> bool:
    """Makes the run directory, or finds this run in it; returns whether it was there.

    A directory that holds anything else or cannot be written is a RunError.
    """
    try:
        there = directory.check_same(workdir, config)
        if not there:
            directory.create(workdir, config)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"workdir {workdir} cannot be written ({reason}): choose another --workdir") from None
    return there


class _Session:
    """What happens beside the steps, and when."""

    def __init__(
        self, config, network, data: AnyDataset, workdir: Path, journal: Journal, listener: Listener
    ):
        self.config, self.network, self.data = config, network, data
        self.workdir, self.journal, self.listener = workdir, journal, listener
        self.epoch = max(config["data"]["size"] // config["batch_size"], 1)
        self.monitor_every = config["monitor_every"] or self.epoch
        self.save_every = config["save_every"] or self.epoch
        last = journal.last[directory.METRICS] or {}
        self.seconds = last.get("seconds") or 0.0
        self.warned: set[str] = set()
        self._mark: tuple[int, float] | None = None
        self._saved = -1

    def after(self, progress: loop.Progress) -> None:
        """Logs, monitors and saves after a step, each when it is due."""
        step, state, info = progress
        last = step == self.config["steps"]
        looks = last or step % self.monitor_every == 0
        if self._mark is None:  # the first step compiles: the clock starts after it
            jax.block_until_ready(info)
            self._mark = (step, time.perf_counter())
        if looks or step % self.config["log_every"] == 0:
            line = self._line(step, info)
            self._warn(line)
            if looks:
                self.look(step, state, line)
            else:
                self._write(line)
        if last or step % self.save_every == 0:
            self.save(step, state)

    def look(self, step: int, state: State, line: dict[str, Any]) -> None:
        """Adds what held-out images show to a line and writes it; writes down the posterior."""
        line = {"step": step, "epoch": step / self.epoch} | line
        with self._aside(state):
            state = jax.device_put(state, jax.devices()[0])  # one device sees as much as all of them
            model = from_state(self.config, self.network, state)
            self._write(line | held_out(model, state.online, self.data))
            if model.bayesian:
                layers = jax.device_get(layer_statistics(state.posterior))
                plain = {
                    path: {name: float(value) for name, value in statistics._asdict().items()}
                    for path, statistics in layers.items()
                }
                self.journal.posterior({"step": step, "epoch": line["epoch"], "layers": plain})

    def save(self, step: int, state: State) -> None:
        """Writes the state, once."""
        if step != self._saved:
            with self._aside(state):
                checkpoint.save(self.workdir / directory.CHECKPOINTS, step, state)
            self._saved = step

    @contextmanager
    def _aside(self, state: State) -> Iterator[None]:
        """The clock of the training stands still meanwhile."""
        jax.block_until_ready(state)
        start = time.perf_counter()
        yield
        if self._mark is not None:
            step, clock = self._mark
            self._mark = (step, clock + time.perf_counter() - start)

    def _line(self, step: int, info: Info) -> dict[str, Any]:
        shown = {name: float(value) for name, value in info._asdict().items() if value is not None}
        if self.config["method"] not in ("byov", "supervised_bbb"):
            for name in ("kl", "kl_per_weight", "kl_scaled", "beta", "temperature"):
                del shown[name]
        if self.config["method"].startswith("supervised"):
            del shown["tau"]
        assert self._mark is not None
        start, clock = self._mark
        now = time.perf_counter()
        self.seconds += now - clock
        self._mark = (step, now)
        rate = (step - start) * self.config["batch_size"] / (now - clock) if step > start else None
        return {
            "step": step,
            "epoch": step / self.epoch,
            **shown,
            "images_per_second": rate,
            "seconds": self.seconds,
        }

    def _write(self, line: dict[str, Any]) -> None:
        self.journal.metrics(line)
        self.listener.line(line)

    def _warn(self, line: dict[str, Any]) -> None:
        step, loss, spread = line["step"], line["loss"], line["embedding_std"]
        if not math.isfinite(loss):
            self._warn_once(
                "diverged",
                f"step {step}: the loss is {loss}: the training has diverged. Stop it, and try a lower "
                "learning rate, a longer warm-up, or config.optimizer.clip_norm=1.",
            )
        elif spread < COLLAPSED:
            self._warn_once(
                "collapsed",
                f"step {step}: embedding_std is {spread:.3f}: the embeddings have collapsed, all images look "
                "alike to the network. Try a lower learning rate, a longer warm-up, batch norm in the heads, "
                "or a larger batch.",
            )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self.warned:
            self.warned.add(kind)
            self.listener.warning(text)


def held_out(model: Model, probe: online.Online, data: AnyDataset) -> dict[str, float]:
    """Accuracy on held-out images: `probe`, of the online probe or the network's own head, and `knn`.

    Nothing without labels; NaN for a network that diverged.
    """
    if isinstance(data, Unlabelled):
        return {}
    test, bank = _some(data.test, HELD_OUT), _some(data.train, BANK)
    queries = model.embed(test.image)
    if not jnp.isfinite(queries).all():
        return {"probe": math.nan, "knn": math.nan}
    if model.supervised:
        scores = model.predict(test.image, draws=0).probs
    else:
        scores = online.logits(probe.params, queries)
    near = knn.nearest(model.embed(bank.image), queries, k=min(NEIGHBOURS, len(bank.label)))
    votes = knn.vote(near, bank.label, classes=len(data.classes), k=min(NEIGHBOURS, len(bank.label)))
    return {
        name: float(jnp.mean(jnp.argmax(values, axis=1) == test.label))
        for name, values in (("probe", scores), ("knn", votes))
    }


def _some(images: Images, count: int) -> Images:
    """The same few images at every time, spread over all of them."""
    rows = np.linspace(0, len(images.image) - 1, min(count, len(images.image))).astype(int)
    return Images(images.image[rows], images.label[rows])


def _newest(workdir: Path, method, config: dict[str, Any], data: AnyDataset) -> State:
    """The newest saved state, or the one before the first step."""
    folder = workdir / directory.CHECKPOINTS
    step = checkpoint.latest(folder)
    state = loop.initial(method, _batch(data), config["seed"])
    if step is None:
        return state
    try:
        return checkpoint.restore(folder, step, state)
    except Exception as error:  # orbax raises many kinds; each means that this run cannot go on
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise RunError(f"checkpoint {folder / str(step)} cannot be read: {reason[0][:200]}") from error


def _batch(data: AnyDataset) -> Batch:
    return Batch(data.train.image, data.train.label)
