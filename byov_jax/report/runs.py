"""A run as its result files describe it: config, training curves, measurements."""

import contextlib
import dataclasses
import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from byov_jax.errors import RunError
from byov_jax.training import run_directory

IDENTITY = ("model", "data", "seed")
"""The settings that all parts of one evaluation share."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What lies in a run directory; what is not there is empty.

    Attributes:
      path: the directory.
      config: complete.
      environment: versions and devices of the training.
      metrics: one dict for every line of metrics.jsonl.
      posterior: one dict for every line of posterior.jsonl.
      parts: the numbers of every part of the evaluation.
      settings: what each part was measured with.
      compared: the section `baseline` of evaluation.json.
      name: how the report calls it.
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
        """The method of its config."""
        return str(self.config["method"])

    @property
    def bayesian(self) -> bool:
        """Whether its weights have a posterior."""
        return self.method in ("byov", "supervised_bbb")

    @property
    def seed(self) -> int:
        """The seed of its config."""
        return int(self.config["seed"])

    def measured(self, part: str) -> dict[str, Any] | None:
        """The numbers of a part; None if it was not measured or cannot be, for a reason that it states."""
        found = self.parts.get(part)
        return found if found and "reason" not in found else None

    def arrays(self, part: str, *prefixes: str) -> dict[str, np.ndarray]:
        """The arrays of a part whose names start with one of `prefixes`, or all; empty if there are none."""
        file = self.path / run_directory.ARRAYS / f"{part}.npz"
        if not file.is_file():
            return {}
        try:
            # Not np.load: it calls whatever it does not know pickled.
            with file.open("rb") as stream, NpzFile(stream, allow_pickle=False) as arrays:
                names = [name for name in arrays.files if name.startswith(prefixes or "")]
                return {name: np.asarray(arrays[name]) for name in names}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise RunError(f"{file} cannot be read as .npz: {error}") from None

    def count(self, part: str, key: str) -> str:
        """How many images, draws or repeats a part was measured with, as a word."""
        with self.reading(f"part {part} of its evaluation"):
            return f"{int(self.parts[part][key]):,}"

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Turns what goes wrong while numbers of a file are looked up into one line that names it."""
        try:
            yield
        except RunError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{self.path}: {what} is not as a run has it: {error!r}") from error


def find(place: Path) -> list[Path]:
    """`place` if it is a run directory, otherwise all run directories one or two levels below it."""
    if (place / run_directory.CONFIG).is_file():
        return [place]
    if not place.is_dir():
        raise RunError(f"{place} is not a directory")
    found = [file.parent for depth in ("*", "*/*") for file in place.glob(f"{depth}/{run_directory.CONFIG}")]
    if not found:
        raise RunError(
            f"{place} is neither a run directory nor a folder of them: "
            f"there is no {run_directory.CONFIG} in it or two levels below"
        )
    return sorted(found, key=lambda run: natural(str(run)))


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts `seed_10` after `seed_9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text)]


def number(value: Any) -> float:
    """A number of a JSON file, where None stands for what is not finite."""
    return math.nan if value is None else float(value)


def read(path: Path) -> Run:
    """Reads a run; a damaged file is a RunError, a missing one is not."""
    evaluation = _object(path / run_directory.EVALUATION)
    parts, settings = _parts(path, evaluation)
    return Run(
        path=path,
        config=run_directory.read_config(path),
        environment=_object(path / run_directory.ENVIRONMENT),
        metrics=_lines(path / run_directory.METRICS),
        posterior=_lines(path / run_directory.POSTERIOR),
        parts=parts,
        settings=settings,
        compared=_section(path / run_directory.EVALUATION, evaluation, "baseline"),
    )


def _parts(path: Path, evaluation: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers and settings of all parts, from evaluation.json and from the files beside the arrays.

    A run that was measured as the baseline of another has only the latter, and where both are there, the
    latter are those that belong to the arrays.
    """
    file = path / run_directory.EVALUATION
    parts = dict(_section(file, evaluation, "parts"))
    settings = dict(_section(file, evaluation, "settings"))
    identity = _identity(next(iter(settings.values()), None))
    for kept in sorted((path / run_directory.ARRAYS).glob("*.json")):
        found = _object(kept)
        numbers, chosen = (_section(kept, found, key) for key in ("numbers", "settings"))
        identity = identity or _identity(chosen)
        if _identity(chosen) == identity:  # parts of other data or of another seed are left out
            parts[kept.stem], settings[kept.stem] = numbers, chosen
    for name, numbers in parts.items():
        if not isinstance(numbers, dict):
            raise RunError(f"{file}: part {name} must be one JSON object, not a {type(numbers).__name__}")
    return parts, settings


def _identity(settings: Any) -> tuple | None:
    return tuple(settings.get(key) for key in IDENTITY) if isinstance(settings, dict) else None


def _section(file: Path, found: dict[str, Any], key: str) -> dict[str, Any]:
    section = found.get(key)
    if section is not None and not isinstance(section, dict):
        raise RunError(f"{file}: {key} must be one JSON object, not a {type(section).__name__}")
    return section or {}


def _object(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise RunError(f"{file} must hold one JSON object, not a {type(found).__name__}")
    return found


def _lines(file: Path) -> tuple[dict[str, Any], ...]:
    """The objects of a .jsonl file; a last line that was never finished is left out."""
    if not file.exists():
        return ()
    try:
        lines = file.read_text().splitlines(keepends=True)
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break  # training goes on, or was stopped while it wrote
            raise RunError(f"{file} line {number} cannot be read: {error}") from None
        if not isinstance(value, dict):
            raise RunError(f"{file} line {number} must be one JSON object, not a {type(value).__name__}")
        found.append(value)
    return tuple(found)
