"""Shared state of the parts of an evaluation: model, data, options, features, predictions, progress."""

import dataclasses
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from byov_jax.data.dataset import Dataset, Images
from byov_jax.evaluation import linear_probe, shift
from byov_jax.evaluation.linear_probe import LinearProbe
from byov_jax.model import Model

PURPOSES = ("draws", "resamples", "shifts", "noise", "pruning")


class Options(NamedTuple):
    """Options of an evaluation; `byov evaluate --help` explains each."""

    seed: int = 0
    draws: int = 30
    shift_draws: int = 6
    shift_images: int = 200
    std_draws: int = 200
    blocks: int = 0
    labels: tuple[float, ...] = (0.01, 0.1)
    features: tuple[str, ...] = ("student", "teacher", "untrained", "pixels")
    refit: bool = False


class Progress:
    """A progress bar within a part on a terminal, and a line for every part that is done."""

    def __init__(self, *, silent: bool = False) -> None:
        """Show nothing yet, or nothing at all."""
        self._silent = silent
        self._bar = tqdm(disable=True)

    def start(self, part: str) -> None:
        """Begin a part."""
        self._bar = tqdm(desc=part, disable=self._silent or not sys.stderr.isatty(), leave=False)

    def tick(self, total: int) -> None:
        """Advance by one step of `total`."""
        self._bar.total = total
        self._bar.update()

    def stop(self) -> None:
        """End the part."""
        self._bar.close()

    def say(self, text: str) -> None:
        """Print a line."""
        if not self._silent:
            print(text, flush=True)


@dataclasses.dataclass(frozen=True)
class Context:
    """A trained model, the data it is evaluated on, and what the parts compute once.

    Attributes:
      model: with a probe, unless it was trained with labels.
      data: what it is evaluated on.
      options: see `Options`.
      progress: shows the progress within a part.
      reference: a supervised Bayesian model, for the alignment of uncertainties.
      ood: other images, as out-of-distribution input.
    """

    model: Model
    data: Dataset
    options: Options
    progress: "Progress"
    reference: Model | None = None
    ood: Images | None = None

    def tick(self, total: int) -> None:
        """Advance the current part by one step of `total`."""
        self.progress.tick(total)

    def key(self, purpose: str) -> jax.Array:
        """Return the key of a purpose, the same whichever parts are run."""
        return jax.random.fold_in(jax.random.key(self.options.seed), PURPOSES.index(purpose))

    def sample_images(self, count: int) -> Images:
        """Return a random subset of the test images, the same for every model and every part."""
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
        """The EMA teacher, with a probe fitted on its own features."""
        fitted = linear_probe.fit(self.teacher_bank, self.data.train.label, classes=len(self.data.classes))
        return dataclasses.replace(self.model.of_teacher(), probe=fitted)

    @cached_property
    def predictions(self) -> shift.Predictions:
        """Predictions on the test images, with the mean and with draws, by all probes."""
        q, apply = self.model.classifier(self.probes)
        return shift.predict(self.key("draws"), q, apply, self.data.test.image, self.options.draws)


def linear_probes(
    bank: Any, data: Dataset, fractions: Sequence[float], ready: LinearProbe | None = None
) -> dict[str, LinearProbe]:
    """Fit a probe on all labels, unless one is `ready`, and one on each fraction of them."""
    classes = len(data.classes)
    fitted = {"linear": ready or linear_probe.fit(bank, data.train.label, classes=classes)}
    for fraction in fractions:
        rows = linear_probe.stratified_subset(data.train.label, fraction, classes=classes, seed=0)
        included = np.isin(np.arange(len(bank)), rows)
        name = f"linear, {fraction:.0%} of labels"
        if np.bincount(data.train.label[rows]).max() >= 5:
            fitted[name] = linear_probe.fit(bank, data.train.label, classes=classes, included=included)
        else:  # no class has an image that could be held out to choose the penalty
            fitted[name] = linear_probe.fit(
                bank, data.train.label, classes=classes, l2=1e-2, included=included
            )
    return fitted
