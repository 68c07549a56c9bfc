"""Read a run directory: config, training curves, measurements."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from byov_jax import files
from byov_jax.errors import RunError
from byov_jax.evaluation.suite.results import with_present_names
from byov_jax.methods import TRAITS, Traits
from byov_jax.training import run_directory

IDENTITY = ("model", "data", "seed")
"""The settings that all parts of one evaluation share."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a run directory; missing files are empty fields.

    Attributes:
      path: the directory.
      config: the complete config.
      environment: versions and devices of the training.
      metrics: one dict per line of metrics.jsonl.
      posterior: one dict per line of posterior.jsonl.
      parts: the numbers of every part of the evaluation.
      settings: the settings that each part was measured with.
      compared: the section `baseline` of evaluation.json.
      name: the label of the run in the report.
    """

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    posterior: tuple[dict[str, Any], ...]
    parts: dict[str, dict[str, Any]]
    settings: dict[str, dict[str, Any]]
    compared: dict[str, Any]
    name: str = ""

    @property
    def method(self) -> str:
        """The method's name in the config."""
        return str(self.config["method"])

    @property
    def traits(self) -> Traits:
        """Whether the method is Bayesian, supervised, with a teacher."""
        return TRAITS[self.method]

    @property
    def is_byov(self) -> bool:
        """Whether the method is Bayesian and self-supervised."""
        return self.traits.bayesian and not self.traits.supervised

    @property
    def is_byol(self) -> bool:
        """Whether the method is deterministic and self-supervised."""
        return not self.traits.bayesian and not self.traits.supervised

    @property
    def seed(self) -> int:
        """The seed in the config."""
        return int(self.config["seed"])

    @property
    def source(self) -> str:
        """The dataset in the config."""
        return str(self.config["data"]["source"])

    def measured(self, part: str) -> dict[str, Any] | None:
        """Return the numbers of a part; None if it was not measured or states why it cannot be."""
        numbers = self.parts.get(part)
        return numbers if numbers and "reason" not in numbers else None

    def arrays(self, part: str, *prefixes: str) -> dict[str, np.ndarray]:
        """Return the arrays of a part whose names start with one of `prefixes`, by default all."""
        file = self.path / run_directory.ARRAYS / f"{part}.npz"
        return files.read_npz(file, prefixes or ("",)) if file.is_file() else {}

    def count(self, part: str, key: str) -> str:
        """Format the number of images, draws or repeats that a part was measured with."""
        with self.parsing(f"part {part} of its evaluation"):
            return f"{int(self.parts[part][key]):,}"

    @contextlib.contextmanager
    def parsing(self, what: str) -> Iterator[None]:
        """Turn lookup and conversion errors on the contents of a file into a RunError that names it."""
        try:
            yield
        except RunError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{self.path}: {what} has an unexpected format: {error!r}") from error


def find(path: Path) -> list[Path]:
    """Return `path` if it is a run directory, otherwise all run directories one or two levels below it."""
    if (path / run_directory.CONFIG).is_file():
        return [path]
    if not path.is_dir():
        raise RunError(f"{path} is not a directory")
    found = [file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{run_directory.CONFIG}")]
    if not found:
        raise RunError(
            f"{path} is neither a run directory nor a folder of them: "
            f"there is no {run_directory.CONFIG} in it or two levels below"
        )
    return sorted(found, key=lambda run: natural_key(str(run)))


def natural_key(text: str) -> list[tuple[int, str]]:
    """A sort key that puts `seed_10` after `seed_9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text)]


def first_byol(runs: Sequence[Run]) -> Run | None:
    """Return the first BYOL run, the default baseline."""
    return next((run for run in runs if run.is_byol), None)


def number(value: Any) -> float:
    """A number of a JSON file as a float; None stands for NaN."""
    return math.nan if value is None else float(value)


def read(path: Path) -> Run:
    """Read a run; a damaged file is a RunError, a missing one is not."""
    file = path / run_directory.EVALUATION
    evaluation = _read_json(file)
    parts, settings = _parts(path, evaluation)
    return Run(
        path=path,
        config=run_directory.read_config(path).to_dict(),
        environment=_read_json(path / run_directory.ENVIRONMENT),
        metrics=tuple(files.read_jsonl(path / run_directory.METRICS)),
        posterior=tuple(files.read_jsonl(path / run_directory.POSTERIOR)),
        parts=parts,
        settings=settings,
        compared=_section(file, evaluation, "baseline"),
    )


def _read_json(file: Path) -> dict[str, Any]:
    return files.read_json(file) if file.exists() else {}


def _parts(path: Path, evaluation: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return numbers and settings of all parts, from evaluation.json and the JSON files beside the arrays.

    A run that was only measured as the baseline of another one has no evaluation.json. Where both exist,
    the files beside the arrays take precedence, since they were written together with the arrays.
    """
    file = path / run_directory.EVALUATION
    parts = dict(_section(file, evaluation, "parts"))
    settings = dict(_section(file, evaluation, "settings"))
    identity = _identity(next(iter(settings.values()), None))
    for part_file in sorted((path / run_directory.ARRAYS).glob("*.json")):
        part = files.read_json(part_file)
        part_numbers, part_settings = (_section(part_file, part, key) for key in ("numbers", "settings"))
        identity = identity or _identity(part_settings)
        if _identity(part_settings) == identity:  # skip parts of other data or of another seed
            parts[part_file.stem], settings[part_file.stem] = part_numbers, part_settings
    for name, numbers in parts.items():
        if not isinstance(numbers, dict):
            raise RunError(f"{file}: part {name} must be one JSON object, not a {type(numbers).__name__}")
    return {name: with_present_names(numbers) for name, numbers in parts.items()}, settings


def _identity(settings: Any) -> tuple | None:
    return tuple(settings.get(key) for key in IDENTITY) if isinstance(settings, dict) else None


def _section(file: Path, content: dict[str, Any], key: str) -> dict[str, Any]:
    section = content.get(key)
    if section is not None and not isinstance(section, dict):
        raise RunError(f"{file}: {key} must be one JSON object, not a {type(section).__name__}")
    return section or {}
