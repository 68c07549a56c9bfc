"""An evaluation in its run directory: part by part, each kept as soon as it is measured."""

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from byov_jax import files
from byov_jax.data import load as named
from byov_jax.data.dataset import Dataset, Unlabelled
from byov_jax.errors import ImageError, RunError
from byov_jax.evaluation.suite import PARTS
from byov_jax.evaluation.suite.numbers import gains, gains_under_shift, plain
from byov_jax.evaluation.suite.subject import Options, Progress, Result, Subject
from byov_jax.model import Model, load, save_probe
from byov_jax.training import run_directory

COMPARED = ("calibration", "shift")
BASELINE = (*COMPARED, "pruning")
"""The parts that are measured on a baseline as well."""

USES = {
    "probe": ("draws", "blocks", "labels", "features"),
    "calibration": ("draws",),
    "convergence": (),
    "shift": ("shift_draws", "shift_images"),
    "ood": ("shift_draws", "shift_images"),
    "pruning": ("refit",),
    "latent": (),
    "alignment": ("std_draws",),
    "layers": (),
}
"""The options that each part depends on."""


class Evaluation:
    """The parts of an evaluation in a run directory."""

    def __init__(
        self, run: Path, arguments: argparse.Namespace, options: Options, progress: Progress | None = None
    ) -> None:
        """Loads the run and its data; nothing is measured yet."""
        self.run = run
        self.progress = progress or Progress()
        self.options = options
        self.model = load(run)
        self.source = arguments.data or self.model.config["data"]["source"]
        self.data = _load(self.source, self.model)
        self.reference = load(arguments.supervised) if arguments.supervised else None
        if self.reference is not None and not (self.reference.supervised and self.reference.bayesian):
            raise RunError(f"--supervised={arguments.supervised} is not a supervised_bbb run")
        self.unfamiliar = _load(arguments.ood, self.model).test if arguments.ood else None
        self._identity = {
            "model": _digest_of(self.model),
            "data": named.digest(self.data.train, self.data.test),
            "seed": options.seed,
        }
        self._told: set[str] = set()

    def settings(self, part: str) -> dict[str, Any]:
        """All that the numbers of a part depend on."""
        chosen = {name: plain(getattr(self.options, name)) for name in USES[part]}
        if part == "alignment":
            chosen["supervised"] = self.reference and _digest_of(self.reference)
        if part == "ood":
            chosen["images"] = self.unfamiliar and named.digest(self.unfamiliar)
        return self._identity | chosen

    def measure(self, parts: list[str]) -> None:
        """Measures the parts that are not there yet."""
        (self.run / run_directory.ARRAYS).mkdir(exist_ok=True)
        missing = [part for part in parts if self.read(part) is None]
        for part in parts:
            if part not in missing:
                self.progress.say(f"{self.run}: {part} is there already")
        if not missing:
            return
        try:
            self._measure(missing)
        except ImageError as error:
            raise RunError(f"{error}: repair the file") from None

    def _measure(self, missing: list[str]) -> None:
        self._fit_probe()
        progress = self.progress
        subject = Subject(self.model, self.data, self.options, progress, self.reference, self.unfamiliar)
        for part in missing:
            start = time.perf_counter()
            progress.start(part)
            try:
                self._keep(part, PARTS[part](subject))
            finally:
                progress.stop()
            progress.say(f"{self.run}: {part:12} {time.perf_counter() - start:6.1f} s")
            self._say_bad()

    def read(self, part: str) -> dict[str, Any] | None:
        """The numbers of a part, if it was measured with these settings."""
        found = self._kept(part)
        return found["numbers"] if found and found["settings"] == self.settings(part) else None

    def arrays(self, part: str) -> dict[str, np.ndarray]:
        """The arrays of a part that was measured."""
        with np.load(self._file(part), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def write(self, baseline: "Evaluation | None") -> None:
        """Gathers all parts in evaluation.json."""
        found = {part: kept for part in PARTS if (kept := self._kept(part))}
        config = self.model.config
        files.write_json(
            self.run / run_directory.EVALUATION,
            {
                "run": {key: config[key] for key in ("method", "prior", "where", "beta_end", "seed")}
                | {"step": self.model.step, "data": self.source, "test images": len(self.data.test.label)},
                "parts": {part: kept["numbers"] for part, kept in found.items()},
                "settings": {part: kept["settings"] for part, kept in found.items()},
                "missing": [part for part in PARTS if part not in found],
                "baseline": self.compare(baseline) if baseline else None,
            },
        )

    def compare(self, baseline: "Evaluation") -> dict[str, Any]:
        """What this run gains over the baseline, in percentage points, positive is better."""
        found: dict[str, Any] = {}
        for part in COMPARED:
            mine, theirs = self.read(part), baseline.read(part)
            if mine is None or theirs is None:
                continue
            arrays, baseline_arrays = self.arrays(part), baseline.arrays(part)
            compared = gains if part == "calibration" else gains_under_shift
            found[part] = {
                mode: compared(mine, arrays, theirs, baseline_arrays, mode) for mode in ("mean", "mc")
            }
        return {
            "run": str(baseline.run),
            "method": baseline.model.config["method"],
            "gain": found,
            "pruning": baseline.read("pruning"),
        }

    def summary(self, baseline: "Evaluation | None") -> str:
        """The main numbers as a table."""
        lines = [f"\n{self.run}: {self.model.config['method']}, step {self.model.step}"]
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
        lines.append(f"\n{self.run / run_directory.EVALUATION}")
        return "\n".join(lines)

    def _fit_probe(self) -> None:
        """Gives the model the classifier that most parts need, and keeps it if the data are the run's own."""
        own = self.source == self.model.config["data"]["source"]
        if self.model.supervised or (self.model.probe is not None and own):
            return
        train = self.data.train
        self.model = self.model.with_probe(train.image, train.label, classes=len(self.data.classes))
        if own:
            save_probe(self.run, self.model)

    def _say_bad(self) -> None:
        """Names the images that could not be read, once each."""
        for images in (self.data.train, self.data.test, self.unfamiliar):
            bad = getattr(images and images.image, "bad", {})
            for name in [name for name in bad if name not in self._told]:
                self._told.add(name)
                self.progress.say(f"{name} cannot be read as an image ({bad[name]}): it counts as a gray one")

    def _keep(self, part: str, result: Result) -> None:
        arrays = {name: np.asarray(value) for name, value in result.arrays.items()}
        files.write_npz(self._file(part), arrays)
        # The numbers come last: where they are, the part is complete.
        files.write_json(
            self.run / run_directory.ARRAYS / f"{part}.json",
            {"settings": self.settings(part), "numbers": plain(result.numbers)},
        )

    def _kept(self, part: str) -> dict[str, Any] | None:
        """What was kept of a part, if it is of this model, these data and this seed."""
        try:
            found = json.loads((self.run / run_directory.ARRAYS / f"{part}.json").read_text())
        except (OSError, ValueError):
            return None
        complete = isinstance(found, dict) and {"settings", "numbers"} <= set(found)
        if not complete or not self._file(part).is_file():
            return None
        return found if self._identity.items() <= found["settings"].items() else None

    def _file(self, part: str) -> Path:
        return self.run / run_directory.ARRAYS / f"{part}.npz"


def _load(name: str, model: Model) -> Dataset:
    try:
        data = named.load(model.config["data"] | {"source": name}, model.config["data"]["image"][0])
    except (ValueError, OSError) as error:
        raise RunError(str(error)) from None
    if isinstance(data, Unlabelled):
        raise RunError(
            f"evaluate needs labels, {name} has none: sort its images into train/CLASS/ and test/CLASS/"
        )
    train, test = (images._replace(label=np.asarray(images.label)) for images in (data.train, data.test))
    data = data._replace(train=train, test=test)  # labels that are read as needed are all needed here
    expected = tuple(model.config["data"]["image"])
    if data.test.image.shape[1:] != expected:
        raise RunError(f"the images of {name} are {data.test.image.shape[1:]}; the run takes {expected}")
    classes = model.config["data"]["classes"]
    if model.supervised and len(data.classes) != classes:
        raise RunError(f"{name} has {len(data.classes)} classes; the supervised run knows {classes}")
    return data


def _digest_of(model: Model) -> str:
    known = [run_directory.essential(model.config), model.step]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
