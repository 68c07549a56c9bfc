"""What is measured: a trained model, the data, and what the parts of an evaluation share."""

import dataclasses
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from byov_jax.data.dataset import Dataset, Images
from byov_jax.evaluation import few_labels, linear_probe, shift
from byov_jax.evaluation.linear_probe import LinearProbe
from byov_jax.model import Model

PURPOSES = ("draws", "resamples", "shifts", "noise", "pruning")


class Options(NamedTuple):
    """What a user may choose; `byov_jax.cli.evaluate --help` explains each."""

    seed: int = 0
    draws: int = 30
    shift_draws: int = 6
    shift_images: int = 200
    std_draws: int = 200
    blocks: int = 0
    labels: tuple[float, ...] = (0.01, 0.1)
    features: tuple[str, ...] = ("student", "teacher", "untrained", "pixels")
    refit: bool = False


class Result(NamedTuple):
    """Numbers for evaluation.json, and the arrays behind the figures."""

    numbers: dict[str, Any]
    arrays: dict[str, Any]


class Progress:
    """A bar with the time left on a terminal, and a line for every part that is done."""

    def __init__(self) -> None:
        """Shows nothing yet."""
        self._bar = tqdm(disable=True)

    def start(self, part: str) -> None:
        """A part begins."""
        self._bar = tqdm(desc=part, disable=not sys.stderr.isatty(), leave=False)

    def tick(self, total: int) -> None:
        """One step of `total` is done."""
        self._bar.total = total
        self._bar.update()

    def stop(self) -> None:
        """The part is done."""
        self._bar.close()

    def say(self, text: str) -> None:
        """A line for the user."""
        print(text, flush=True)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A trained model, the data it is measured on, and what the parts of an evaluation share.

    Attributes:
      model: with a probe, unless it was trained with labels.
      data: where it is measured.
      options: see `Options`.
      progress: shows how far a part is.
      reference: a supervised Bayesian model, for the alignment of uncertainties.
      unfamiliar: other images, as out-of-distribution input.
    """

    model: Model
    data: Dataset
    options: Options
    progress: "Progress"
    reference: Model | None = None
    unfamiliar: Images | None = None

    def tick(self, total: int) -> None:
        """One step of `total` of the current part is done."""
        self.progress.tick(total)

    def key(self, purpose: str) -> jax.Array:
        """A key for each purpose, the same whichever parts are run."""
        return jax.random.fold_in(jax.random.key(self.options.seed), PURPOSES.index(purpose))

    def some(self, count: int) -> Images:
        """A random part of the test images, the same for every model and every part."""
        rng = np.random.default_rng(self.options.seed)
        chosen = np.sort(rng.permutation(len(self.data.test.label))[:count])
        return Images(self.data.test.image[chosen], self.data.test.label[chosen])

    @cached_property
    def bank(self) -> jax.Array:
        """Features of the training images at the mean weights."""
        return self.model.embed(self.data.train.image)

    @cached_property
    def probes(self) -> dict[str, LinearProbe]:
        """Linear probes on the bank, with all labels and with few."""
        return linear_probes(self.bank, self.data, self.options.labels, self.model.probe)

    @cached_property
    def teacher_bank(self) -> jax.Array:
        """The teacher's features of the training images."""
        return self.model.of_teacher().embed(self.data.train.image)

    @cached_property
    def teacher(self) -> Model:
        """The EMA teacher, with a probe on its own features: the student's would not fit them."""
        fitted = linear_probe.fit(self.teacher_bank, self.data.train.label, classes=len(self.data.classes))
        return dataclasses.replace(self.model.of_teacher(), probe=fitted)

    @cached_property
    def predictions(self) -> shift.Predictions:
        """Both modes of prediction on the test images, by all of the probes."""
        q, apply = self.model.classifier(self.probes)
        return shift.predictions(self.key("draws"), q, apply, self.data.test.image, self.options.draws)


def linear_probes(
    bank: Any, data: Dataset, fractions: Sequence[float], ready: LinearProbe | None = None
) -> dict[str, LinearProbe]:
    """A probe on all labels, unless there is one `ready`, and one on each fraction of them."""
    classes = len(data.classes)
    fitted = {"linear": ready or linear_probe.fit(bank, data.train.label, classes=classes)}
    for fraction in fractions:
        rows = few_labels.subset(data.train.label, fraction, classes=classes, seed=0)
        some = np.isin(np.arange(len(bank)), rows)
        name = f"linear, {fraction:.0%} of labels"
        if np.bincount(data.train.label[rows]).max() >= 5:
            fitted[name] = linear_probe.fit(bank, data.train.label, classes=classes, included=some)
        else:  # no class has an image that could be held out to choose the penalty
            fitted[name] = linear_probe.linear(
                bank, data.train.label, classes=classes, l2=1e-2, included=some
            )
    return fitted
