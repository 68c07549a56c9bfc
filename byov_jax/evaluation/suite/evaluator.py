"""Evaluate a model part by part; parts that were measured with the same settings are not measured again."""

import hashlib
import json
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from byov_jax.data import digest
from byov_jax.data.dataset import Dataset, Images
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.errors import ImageError, RunError
from byov_jax.evaluation.suite.context import Context, Options, Progress
from byov_jax.evaluation.suite.parts import PARTS
from byov_jax.evaluation.suite.results import (
    Baseline,
    EvaluationResult,
    Numbers,
    gains,
    gains_under_shift,
    plain,
)
from byov_jax.model import Model
from byov_jax.training import run_directory

COMPARED = ("calibration", "shift")
"""The parts in which gains over a baseline are computed."""


def evaluate(
    model: Model,
    data: Dataset,
    parts: str | Iterable[str] | None = None,
    *,
    baseline: Model | None = None,
    supervised: Model | None = None,
    ood: Images | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Measure a model as the paper does.

    Args:
      model: a trained model; without a classifier, a linear probe is fitted on the training images.
      data: labelled images that the model takes; the test split is measured.
      parts: a name in `PARTS`, or several; all of them if None.
      baseline: another model, such as BYOL's, to report gains over.
      supervised: a supervised Bayesian model, for the part "alignment".
      ood: images of another kind, for the part "ood".
      options: draws, seed and so on; see `Options`.
      progress: shows the progress; silent if None.

    Returns:
      What `byov evaluate` writes to evaluation.json.
    """
    options = options or Options()
    chosen = [parts] if isinstance(parts, str) else list(PARTS if parts is None else parts)
    if unknown := [part for part in chosen if part not in PARTS]:
        raise ValueError(f"parts={unknown[0]!r}: expected some of {', '.join(PARTS)}")
    evaluator = Evaluator(model, data, supervised=supervised, ood=ood, options=options, progress=progress)
    other = None
    if baseline is not None:
        other = Evaluator(baseline, data, options=options, progress=progress, name="baseline")
        other.measure([part for part in chosen if PARTS[part].baseline])
    evaluator.measure(chosen)
    return evaluator.result(other)


class InMemoryStorage:
    """The results of the parts, in memory."""

    def __init__(self) -> None:
        """Start empty."""
        self._parts: dict[str, tuple[dict[str, Numbers], dict[str, np.ndarray]]] = {}

    def write(self, part: str, settings: Numbers, numbers: Numbers, arrays: dict[str, np.ndarray]) -> None:
        """Keep the results of a part."""
        self._parts[part] = ({"settings": settings, "numbers": numbers}, arrays)

    def read(self, part: str) -> dict[str, Numbers] | None:
        """Return `settings` and `numbers` of a part, None if it is not there."""
        return self._parts[part][0] if part in self._parts else None

    def arrays(self, part: str) -> dict[str, np.ndarray]:
        """Return the arrays of a part."""
        return self._parts[part][1]

    def save_probe(self, model: Model) -> None:
        """Do nothing: the model itself has the fitted probe."""


class Evaluator:
    """A model, the data it is evaluated on, and the results so far.

    Attributes:
      model: with a probe, once a part was measured, unless it was trained with labels.
      name: the name of the model in messages and results.
    """

    def __init__(
        self,
        model: Model,
        data: Dataset,
        *,
        supervised: Model | None = None,
        ood: Images | None = None,
        options: Options | None = None,
        progress: Progress | None = None,
        storage: InMemoryStorage | None = None,
        name: str = "model",
        source: str = "",
    ) -> None:
        """Measure nothing yet. `source` names the data; empty for those of the model's training."""
        if supervised is not None and not (supervised.supervised and supervised.bayesian):
            raise RunError(f"the model for alignment is a {supervised.config.method} one, not supervised_bbb")
        self.source = source or model.config.data.source
        _check_shape(model, data.test, self.source)
        if ood is not None:
            _check_shape(model, ood, "ood")
        classes = model.config.data.classes
        if model.supervised and len(data.classes) != classes:
            raise RunError(f"{self.source} has {len(data.classes)} classes; the model has {classes}")
        self.model, self.name = model, name
        self.data = _in_memory_labels(data)
        self.options = options or Options()
        self.progress = progress or Progress(silent=True)
        self.storage = storage or InMemoryStorage()
        self._supervised, self._ood = supervised, ood
        self._identity = {
            "model": _digest_of(model),
            "data": digest.of_images(self.data.train, self.data.test),
            "seed": self.options.seed,
        }
        self._reported: set[str] = set()

    def settings(self, part: str) -> dict[str, Any]:
        """Return everything that the numbers of a part depend on."""
        chosen = {name: plain(getattr(self.options, name)) for name in PARTS[part].options}
        if part == "alignment":
            chosen["supervised"] = self._supervised and _digest_of(self._supervised)
        if part == "ood":
            chosen["images"] = self._ood and digest.of_images(self._ood)
        return self._identity | chosen

    def measure(self, parts: Iterable[str]) -> None:
        """Measure the parts that were not measured with these settings."""
        missing = []
        for part in parts:
            if self.read(part) is None:
                missing.append(part)
            else:
                self.progress.say(f"{self.name}: {part} was measured before")
        if not missing:
            return
        try:
            self._measure(missing)
        except ImageError as error:
            raise RunError(f"{error}: repair the file") from None

    def read(self, part: str) -> dict[str, Any] | None:
        """Return the numbers of a part, None if it was not measured with these settings."""
        stored = self._stored(part)
        return stored["numbers"] if stored and stored["settings"] == self.settings(part) else None

    def result(self, baseline: "Evaluator | None" = None) -> EvaluationResult:
        """Gather all parts that belong to this model, these data and this seed."""
        stored = {part: found for part in PARTS if (found := self._stored(part))}
        config = self.model.config
        return {
            "run": {name: getattr(config, name) for name in ("method", "prior", "where", "beta_end", "seed")}
            | {"step": self.model.step, "data": self.source, "test images": len(self.data.test.label)},
            "parts": {part: found["numbers"] for part, found in stored.items()},
            "settings": {part: found["settings"] for part, found in stored.items()},
            "missing": [part for part in PARTS if part not in stored],
            "baseline": self.compare(baseline) if baseline else None,
        }

    def compare(self, baseline: "Evaluator") -> Baseline:
        """Return the gains over a baseline."""
        found: dict[str, Any] = {}
        for part in COMPARED:
            ours, theirs = self.read(part), baseline.read(part)
            if ours is None or theirs is None:
                continue
            arrays, baseline_arrays = self.storage.arrays(part), baseline.storage.arrays(part)
            compared = gains if part == "calibration" else gains_under_shift
            found[part] = {
                mode: compared(ours, arrays, theirs, baseline_arrays, mode) for mode in ("mean", "mc")
            }
        return {
            "run": baseline.name,
            "method": baseline.model.config.method,
            "gain": found,
            "pruning": baseline.read("pruning"),
        }

    def summary(self, baseline: "Evaluator | None" = None) -> str:
        """Format the main numbers as a table."""
        lines = [f"\n{self.name}: {self.model.config.method}, step {self.model.step}"]
        calibration = self.read("calibration")
        if calibration:
            shown = ("top1", "top5", "nll", "ece", "adaptive_ece", "brier", "reliability", "resolution")
            lines.append("  " + " " * 14 + "".join(f"{name:>13}" for name in shown))
            for mode in ("mean", "mc", "teacher"):
                if mode in calibration:
                    values = (calibration[mode][name]["value"] for name in shown)
                    lines.append(f"  {mode:14}" + "".join(f"{value:13.4f}" for value in values))
            compared = self.compare(baseline)["gain"] if baseline else {}
            if "calibration" in compared:
                gain = compared["calibration"]["mc"]
                values = (f"{gain[name]['value']:+.2f}" for name in shown)
                lines.append("  gain, points  " + "".join(f"{value:>13}" for value in values))
        probes = self.read("probe")
        if probes:
            columns = list(probes["accuracy"]["student mean"])
            lines.append("\n  " + " " * 18 + "".join(f"{name:>26}" for name in columns))
            for name, row in probes["accuracy"].items():
                lines.append(f"  {name:18}" + "".join(f"{row[column]:26.2%}" for column in columns))
        return "\n".join(lines)

    def _measure(self, missing: list[str]) -> None:
        self._fit_probe()
        progress = self.progress
        context = Context(self.model, self.data, self.options, progress, self._supervised, self._ood)
        for part in missing:
            start = time.perf_counter()
            progress.start(part)
            try:
                numbers, arrays = PARTS[part].measure(context)
            finally:
                progress.stop()
            arrays = {name: np.asarray(value) for name, value in arrays.items()}
            self.storage.write(part, self.settings(part), plain(numbers), arrays)
            progress.say(f"{self.name}: {part:12} {time.perf_counter() - start:6.1f} s")
            self._report_unreadable()

    def _fit_probe(self) -> None:
        """Give the model the linear probe that most parts need, and store it if the data are its own."""
        own = self.source == self.model.config.data.source
        if self.model.supervised or (self.model.probe is not None and own):
            return
        train = self.data.train
        self.model = self.model.with_probe(train.image, train.label, classes=len(self.data.classes))
        if own:
            self.storage.save_probe(self.model)

    def _stored(self, part: str) -> dict[str, Any] | None:
        """Return a part of this model, these data and this seed."""
        stored = self.storage.read(part)
        return stored if stored and self._identity.items() <= stored["settings"].items() else None

    def _report_unreadable(self) -> None:
        """Name the images that could not be read, once each."""
        for images in (self.data.train, self.data.test, self._ood):
            if images is None or not isinstance(images.image, LazyImages):
                continue
            for name, reason in images.image.unreadable.items():
                if name not in self._reported:
                    self._reported.add(name)
                    self.progress.say(
                        f"{name} cannot be read as an image ({reason}): it is evaluated as gray"
                    )


def _in_memory_labels(data: Dataset) -> Dataset:
    train, test = (images._replace(label=np.asarray(images.label)) for images in (data.train, data.test))
    return data._replace(train=train, test=test)


def _check_shape(model: Model, images: Images, name: str) -> None:
    expected, shape = model.config.data.image, tuple(images.image.shape[1:])
    if shape != expected:
        raise RunError(f"the images of {name} are {shape}; the model takes {expected}")


def _digest_of(model: Model) -> str:
    identity = [run_directory.identity(model.config), model.step]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
