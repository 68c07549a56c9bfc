"""The folder of a run's checkpoints: which steps there are, which of them are sound, which ones go.

checkpoints/
  STEP/               what orbax wrote, and a manifest with a checksum of every file
  set_aside/STEP/     what could not be verified, kept to be looked at
  STEP.unfinished/    a state that is being written
  STEP.retired/       one that is being deleted

A state takes its name last of all, once its manifest is written: a process that is killed leaves a whole step
or none.
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
SET_ASIDE = "set_aside"
_UNFINISHED, _RETIRED = ".unfinished", ".retired"


class Retention(NamedTuple):
    """Which states stay: the last so many, and all whose step is a multiple of `every`, if that is not 0."""

    last: int = 3
    every: int = 0


def steps(folder: Path) -> list[int]:
    """The steps that were completely written, in order; whether they are still sound is not looked at."""
    return [step for step in _numbered(folder) if integrity.exists(folder / str(step))]


def latest_step(folder: Path) -> int | None:
    """The newest of `steps`; None if there is none."""
    return max(steps(folder), default=None)


def metadata(folder: Path) -> dict[str, Any]:
    """What was kept with the newest state whose manifest can be read; empty if there is none."""
    for step in reversed(steps(folder)):
        with contextlib.suppress(ValueError):
            return integrity.read(folder / str(step))["about"]
    return {}


def newest_verified(folder: Path, warn: Warn | None) -> int:
    """The newest step that is sound, -1 if nothing was ever saved.

    `warn` hears of every step that is not, which is then set aside; without it nothing is moved. If none is
    sound, that is a RunError.
    """
    problems = []
    for step in reversed(_numbered(folder)):
        problem = _problem(folder / str(step))
        if problem is None:
            return step
        problems.append(f"{folder / str(step)}: {problem}")
        if warn is not None:
            warn(f"checkpoint {problems[-1]}; {_moved(folder, step)}")
    aside = folder / SET_ASIDE
    if not problems and aside.is_dir():
        problems = [f"all are in {aside}" for _ in aside.iterdir()]
    if problems:
        raise RunError(
            f"no checkpoint in {folder} is sound ({problems[0]}): put back a good copy, or choose another "
            "--workdir; nothing was overwritten"
        )
    return -1


def _problem(place: Path) -> str | None:
    """What is wrong with a step, None if nothing is."""
    if place.is_symlink():
        return "it is a link, and may lead anywhere"
    problem = integrity.find_damage(place)
    if problem is None:
        step = integrity.read(place)["about"].get("step")
        problem = None if str(step) == place.name else f"it is the state of step {step}"
    return problem


def _moved(folder: Path, step: int) -> str:
    try:
        return f"it was set aside as {_set_aside(folder, step)}"
    except OSError as error:
        return f"it could not be set aside ({error.strerror}) and stays where it is"


def _set_aside(folder: Path, step: int) -> Path:
    """Moves a step out of the way, under a name that is free."""
    aside = folder / SET_ASIDE
    aside.mkdir(exist_ok=True)
    names = (aside / (f"{step}" if not n else f"{step}.{n}") for n in range(10**6))
    place = next(name for name in names if not name.exists())
    (folder / str(step)).rename(place)
    return place


def remove_leftovers(folder: Path) -> None:
    """Removes what a process that was killed left half-written, or half-deleted."""
    for ending in (_UNFINISHED, _RETIRED):
        _remove(folder, f"*{ending}*")


def _remove(folder: Path, pattern: str) -> None:
    for left in folder.glob(pattern):
        shutil.rmtree(left, ignore_errors=True)


def temporary_path(folder: Path, step: int) -> Path:
    """Where a step is written before it has its name."""
    return folder / f"{step}{_UNFINISHED}"


def remove_unfinished(folder: Path, step: int) -> None:
    """Removes what there is of it."""
    _remove(folder, f"{step}{_UNFINISHED}*")


def clear_path(folder: Path, step: int) -> None:
    """Clears the place of a step that is not sound: sound ones are never written again."""
    remove_unfinished(folder, step)
    if os.path.lexists(folder / str(step)):
        if integrity.exists(folder / str(step)):
            raise RunError(f"{folder / str(step)} exists already")
        _set_aside(folder, step)


def check_free_space(folder: Path, size: int) -> None:
    """Makes the folder, and raises a RunError unless so many bytes can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise RunError(f"{folder} cannot be written to")
    disk = shutil.disk_usage(folder)
    if disk.free < size and disk.total:  # some file systems do not know
        raise RunError(f"it needs {size / 2**20:,.1f} MiB, {disk.free / 2**20:,.1f} MiB are free")


def apply_retention(folder: Path, kept: Retention) -> None:
    """Deletes the states that are no longer kept, each under a name that is no longer a step's.

    What cannot be deleted now is tried again after the next save: the new state is safe all the same.
    """
    for step in steps(folder)[: -kept.last or None]:
        if not kept.every or step % kept.every:
            with contextlib.suppress(OSError):
                (folder / str(step)).rename(folder / f"{step}{_RETIRED}")
    _remove(folder, f"*{_RETIRED}")


def _numbered(folder: Path) -> list[int]:
    """The steps that there are folders of, sound or not, in order."""
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return sorted(int(name) for name in names if name == str(int(name)))
