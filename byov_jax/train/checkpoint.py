"""Training states on disk, by orbax: written in the background, verified before they are read.

checkpoints/
  STEP/               what orbax wrote, and a manifest with a checksum of every file
  set_aside/STEP/     what could not be verified, kept to be looked at
  STEP.unfinished/    a state that is being written
  STEP.retired/       one that is being deleted

A state takes its name last of all, once its manifest is written: a process that is killed leaves a whole step
or none. Orbax alone would read a file with a flipped bit without a word.
"""

import contextlib
import logging
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import multihost

from byov_jax.train import manifest, processes
from byov_jax.train.directory import RunError
from byov_jax.train.meeting import Meeting

Tree = TypeVar("Tree")
Warn = Callable[[str], None]
SET_ASIDE = "set_aside"
_UNFINISHED, _RETIRED = ".unfinished", ".retired"
_ABOUT_A_LEAF = 2**12  # bytes that orbax writes beside the values of an array, at most

# Orbax narrates every file, and what it raises as well. If one write of a state fails, it forgets the others.
logging.getLogger("absl").setLevel(logging.CRITICAL)
logging.getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())
warnings.filterwarnings("ignore", "coroutine 'async_serialize_from_host", RuntimeWarning)


class Kept(NamedTuple):
    """Which states stay: the last so many, and all whose step is a multiple of `every`, if that is not 0."""

    last: int = 3
    every: int = 0


class Writer:
    """Saves one state after another while the training goes on.

    What goes wrong does not end the training: `failure` says it, the last good state stays where it is, and
    the next save is another attempt.

    Attributes:
      saved: the last step that is safely on the disk.
      failure: why the last attempt failed, None if it did not.
    """

    def __init__(
        self, folder: Path, *, about: dict[str, Any] | None = None, kept: Kept | None = None
    ) -> None:
        """`about` is kept with every state."""
        self.saved: int | None = None
        self.failure: str | None = None
        self._folder, self._about, self._kept = folder.absolute(), about or {}, kept or Kept()
        # Compression would make weights a quarter smaller, and saving five times as long.
        handler = ocp.PyTreeCheckpointHandler(use_compression=False)
        self._meeting = _meeting()
        waiting = ocp.options.AsyncOptions(barrier_sync_fn=self._meeting.arrive)
        self._checkpointer = ocp.AsyncCheckpointer(handler, async_options=waiting)
        self._thread: threading.Thread | None = None

    def save(self, step: int, state: Any) -> None:
        """Begins to write `state` as `folder/step`; it may be donated as soon as this returns.

        A state that is not finite is never written: the last good one is worth more.
        """
        self.wait()
        self._meeting.begin()
        if not bool(_finite(state)):
            self.failure = f"the state of step {step} is not finite and was not saved"
            return
        try:
            processes.first_does(lambda: _clear(self._folder, step))
            processes.first_does(lambda: _check_room(self._folder, state))
            self._checkpointer.save(_unfinished(self._folder, step), args=ocp.args.PyTreeSave(state))
        except (
            Exception
        ) as error:  # orbax and the file system have many kinds; none of them may end a training
            self._fail(step, error)
            return
        self._thread = threading.Thread(target=self._finish, args=(step,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until the state that is being written is safe, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Waits, and ends orbax's threads."""
        self.wait()
        self._checkpointer.close()

    def _finish(self, step: int) -> None:
        try:
            self._checkpointer.wait_until_finished()
            if processes.is_first():
                manifest.write(_unfinished(self._folder, step), self._about | {"step": step})
                _unfinished(self._folder, step).rename(self._folder / str(step))
        except Exception as error:
            self._fail(step, error)
            return
        self.saved, self.failure = step, None
        if processes.is_first():
            _retire(self._folder, self._kept)

    def _fail(self, step: int, error: Exception) -> None:
        self.failure = f"step {step} could not be saved ({_reason(error)})"
        self._meeting.leave(_reason(error))
        if jax.process_count() == 1:  # of several, others may be writing there
            _remove(self._folder, f"{step}{_UNFINISHED}*")  # the room may be what is lacking


def _meeting() -> Meeting:
    several = jax.process_count() > 1
    client = multihost.get_jax_distributed_client() if several else None
    return Meeting(client, jax.process_index(), jax.process_count())


def save(folder: Path, step: int, state: Any, **options: Any) -> None:
    """Writes `state` as `folder/step`, all of it or nothing, and waits. Options are those of `Writer`."""
    writer = Writer(folder, **options)
    writer.save(step, state)
    writer.close()
    if writer.failure:
        raise RunError(f"{folder}: {writer.failure}")


def steps(folder: Path) -> list[int]:
    """The steps that were completely written, in order; whether they are still sound is not looked at."""
    return [step for step in _numbered(folder) if manifest.exists(folder / str(step))]


def latest(folder: Path) -> int | None:
    """The newest of `steps`; None if there is none."""
    return max(steps(folder), default=None)


def about(folder: Path) -> dict[str, Any]:
    """What was kept with the newest state whose manifest can be read; empty if there is none."""
    for step in reversed(steps(folder)):
        with contextlib.suppress(ValueError):
            return manifest.read(folder / str(step))["about"]
    return {}


def newest(folder: Path, like: Tree, *, warn: Warn | None = None) -> Tree | None:
    """The newest state that is sound; None if nothing was ever saved.

    Args:
      folder: of the checkpoints of a run.
      like: gives structure, shapes, dtypes and, if it has any, shardings.
      warn: hears of every step that is not sound, which is then set aside; without it nothing is moved, as
        for a reader who does not own the run. If no step is sound, that is a RunError either way.
    """
    step = processes.first_says(lambda: _sound(folder, warn))
    return None if step < 0 else restore(folder, step, like)


def restore(folder: Path, step: int, like: Tree) -> Tree:
    """Reads a state that is known to be sound; `like` as in `newest`.

    A state with other leaves, or leaves of another shape, is a RunError that names the first of them.
    """
    place = (folder / str(step)).absolute()
    if not place.is_dir():
        raise RunError(f"there is no checkpoint {folder / str(step)}")
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def abstract_of(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or device)

    with ocp.StandardCheckpointer() as checkpointer:
        try:
            _check_shapes(checkpointer.metadata(place).item_metadata.tree, like)
            return checkpointer.restore(place, jax.tree.map(abstract_of, like))
        except Exception as error:  # orbax raises many kinds; each means that this state cannot be used
            raise RunError(f"checkpoint {folder / str(step)} cannot be read: {_reason(error)}") from error


def _sound(folder: Path, warn: Warn | None) -> int:
    """The newest step that is sound, -1 if nothing was ever saved."""
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
    problem = manifest.problem(place)
    if problem is None:
        step = manifest.read(place)["about"].get("step")
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


def clean(folder: Path) -> None:
    """Removes what a process that was killed left half-written, or half-deleted."""
    for ending in (_UNFINISHED, _RETIRED):
        _remove(folder, f"*{ending}*")


def _remove(folder: Path, pattern: str) -> None:
    for left in folder.glob(pattern):
        shutil.rmtree(left, ignore_errors=True)


def _unfinished(folder: Path, step: int) -> Path:
    return folder / f"{step}{_UNFINISHED}"


def _clear(folder: Path, step: int) -> None:
    """Makes room for a step that is not sound: sound ones are never written again."""
    _remove(folder, f"{step}{_UNFINISHED}*")
    if os.path.lexists(folder / str(step)):
        if manifest.exists(folder / str(step)):
            raise RunError(f"{folder / str(step)} exists already")
        _set_aside(folder, step)


def _check_room(folder: Path, state: Any) -> None:
    """Better nothing than half a state; and if one of several processes fails alone, the others lose time."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise RunError(f"{folder} cannot be written to")
    leaves = jax.tree.leaves(state)
    need = sum(leaf.nbytes for leaf in leaves) + _ABOUT_A_LEAF * len(leaves)
    disk = shutil.disk_usage(folder)
    if disk.free < need and disk.total:  # some file systems do not know
        raise RunError(f"it needs {need / 2**20:,.1f} MiB, {disk.free / 2**20:,.1f} MiB are free")


def _retire(folder: Path, kept: Kept) -> None:
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


@jax.jit
def _finite(state: Any) -> Any:
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def _check_shapes(stored: Any, like: Any) -> None:
    """Orbax would drop what is None in `like`, and print a traceback for each leaf of another shape."""
    found, expected = _shapes(stored), _shapes(like)
    for path in expected | found:
        here, there = (shapes.get(path, "absent") for shapes in (expected, found))
        if here != there:
            raise ValueError(f"{path} is {there}, expected {here}")


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        jax.tree_util.keystr(keys, simple=True, separator="/"): tuple(leaf.shape)
        for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
