"""The folder of a run's checkpoints: list, verify, quarantine and delete steps.

checkpoints/
  STEP/               what orbax wrote, and a manifest with a checksum of every file
  set_aside/STEP/     a step that failed verification
  STEP.unfinished/    a step that is being written
  STEP.retired/       a step that is being deleted

A step is renamed from `.unfinished` once its manifest is written: a kill leaves a complete step or none.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from byov_jax.checkpoints import integrity
from byov_jax.errors import RunError

Warn = Callable[[str], None]
QUARANTINE = "set_aside"
_UNFINISHED, _RETIRED = ".unfinished", ".retired"


class Retention(NamedTuple):
    """Which steps to keep: the `last` ones, and all multiples of `every`, if it is not 0."""

    last: int = 3
    every: int = 0


def steps(folder: Path) -> list[int]:
    """Return the completely written steps, in order, unverified."""
    return [step for step in _numbered(folder) if integrity.exists(folder / str(step))]


def latest_step(folder: Path) -> int | None:
    """Return the newest of `steps`, None if there is none."""
    return max(steps(folder), default=None)


def metadata(folder: Path) -> dict[str, Any]:
    """Return the metadata of the newest step whose manifest is readable; empty if there is none."""
    for step in reversed(steps(folder)):
        with contextlib.suppress(ValueError):
            return integrity.read(folder / str(step))["about"]
    return {}


def newest_verified(folder: Path, warn: Warn | None) -> int:
    """Return the newest step that passes verification, -1 if nothing was ever saved.

    With `warn`, every newer step is moved to quarantine and reported; without it nothing is moved. If no step
    passes, that is a RunError.
    """
    problems = []
    for step in reversed(_numbered(folder)):
        path = folder / str(step)
        problem = _find_problem(path)
        if problem is None:
            return step
        problems.append(f"{path}: {problem}")
        if warn is not None:
            try:
                result = f"moved to {quarantine(folder, step)}"
            except OSError as error:
                result = f"it could not be moved ({error.strerror})"
            warn(f"checkpoint {path} failed verification ({problem}); {result}")
    moved = folder / QUARANTINE
    if not problems and moved.is_dir() and any(moved.iterdir()):
        problems = [f"all were moved to {moved}"]
    if problems:
        raise RunError(
            f"no valid checkpoint in {folder} ({problems[0]}): restore a good copy, or choose another "
            "--workdir; nothing was overwritten"
        )
    return -1


def _find_problem(path: Path) -> str | None:
    """Return why a step fails verification, None if it passes."""
    if path.is_symlink():
        return "it is a symbolic link"
    problem = integrity.find_damage(path)
    if problem is None:
        step = integrity.read(path)["about"].get("step")
        problem = None if str(step) == path.name else f"it holds the state of step {step}"
    return problem


def quarantine(folder: Path, step: int) -> Path:
    """Move a step to the quarantine folder, under an unused name, and return its new path."""
    (folder / QUARANTINE).mkdir(exist_ok=True)
    paths = (folder / QUARANTINE / (f"{step}" if not n else f"{step}.{n}") for n in range(10**6))
    path = next(path for path in paths if not path.exists())
    (folder / str(step)).rename(path)
    return path


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written or half-deleted."""
    for suffix in (_UNFINISHED, _RETIRED):
        _remove(folder, f"*{suffix}*")


def _remove(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        shutil.rmtree(path, ignore_errors=True)


def temporary_path(folder: Path, step: int) -> Path:
    """Return the path where a step is written before it is renamed."""
    return folder / f"{step}{_UNFINISHED}"


def remove_unfinished(folder: Path, step: int) -> None:
    """Remove a step that is half-written."""
    _remove(folder, f"{step}{_UNFINISHED}*")


def clear_path(folder: Path, step: int) -> None:
    """Make `folder/step` available: quarantine an incomplete step; a complete one is a RunError."""
    remove_unfinished(folder, step)
    if os.path.lexists(folder / str(step)):
        if integrity.exists(folder / str(step)):
            raise RunError(f"{folder / str(step)} exists already")
        quarantine(folder, step)


def check_free_space(folder: Path, size: int) -> None:
    """Create the folder, and raise a RunError unless `size` bytes can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise RunError(f"{folder} is not writable")
    disk = shutil.disk_usage(folder)
    if disk.free < size and disk.total:  # some file systems report 0
        raise RunError(f"it needs {size / 2**20:,.1f} MiB, {disk.free / 2**20:,.1f} MiB are free")


def apply_retention(folder: Path, retention: Retention) -> None:
    """Delete the steps that are not to be kept, each renamed first so that it is no longer listed.

    What cannot be deleted now is tried again after the next save.
    """
    for step in steps(folder)[: -retention.last or None]:
        if not retention.every or step % retention.every:
            with contextlib.suppress(OSError):
                (folder / str(step)).rename(folder / f"{step}{_RETIRED}")
    _remove(folder, f"*{_RETIRED}")


def _numbered(folder: Path) -> list[int]:
    """Return the steps that have a folder, complete or not, in order."""
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return sorted(int(name) for name in names if name == str(int(name)))
