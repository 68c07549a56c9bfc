"""Training states on disk, by orbax: written in the background, verified before they are read.

Orbax alone would read a file with a flipped bit without a word; `shelf` and `manifest` say what is sound.
"""

import logging
import threading
import warnings
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import multihost

from byov_jax.checkpoints import integrity, store
from byov_jax.checkpoints.store import Retention, Warn
from byov_jax.distributed import processes
from byov_jax.distributed.barrier import Barrier
from byov_jax.errors import RunError

Tree = TypeVar("Tree")
_BESIDE_A_LEAF = 2**12  # bytes that orbax writes about an array, at most

# Orbax narrates every file, and what it raises as well. If one write of a state fails, it forgets the others.
logging.getLogger("absl").setLevel(logging.CRITICAL)
logging.getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())
warnings.filterwarnings("ignore", "coroutine 'async_serialize_from_host", RuntimeWarning)


class CheckpointWriter:
    """Saves one state after another while the training goes on.

    What goes wrong does not end the training: `failure` says it, the last good state stays where it is, and
    the next save is another attempt.

    Attributes:
      saved: the last step that is safely on the disk.
      failure: why the last attempt failed, None if it did not.
    """

    def __init__(
        self, folder: Path, *, about: dict[str, Any] | None = None, kept: Retention | None = None
    ) -> None:
        """`about` is kept with every state."""
        self.saved: int | None = None
        self.failure: str | None = None
        self._folder, self._about, self._kept = folder.absolute(), about or {}, kept or Retention()
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
            processes.run_on_main(lambda: self._begin(step, state))
            self._checkpointer.save(store.temporary_path(self._folder, step), args=ocp.args.PyTreeSave(state))
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

    def _begin(self, step: int, state: Any) -> None:
        """Better nothing than half a state; and a process that fails alone costs the others time."""
        leaves = jax.tree.leaves(state)
        store.clear_path(self._folder, step)
        store.check_free_space(
            self._folder, sum(leaf.nbytes for leaf in leaves) + _BESIDE_A_LEAF * len(leaves)
        )

    def _finish(self, step: int) -> None:
        try:
            self._checkpointer.wait_until_finished()
            if processes.is_main():
                place = store.temporary_path(self._folder, step)
                integrity.write(place, self._about | {"step": step})
                place.rename(self._folder / str(step))
        except Exception as error:
            self._fail(step, error)
            return
        self.saved, self.failure = step, None
        if processes.is_main():
            store.apply_retention(self._folder, self._kept)

    def _fail(self, step: int, error: Exception) -> None:
        self.failure = f"step {step} could not be saved ({_reason(error)})"
        self._meeting.leave(_reason(error))
        if jax.process_count() == 1:  # of several, others may be writing there
            store.remove_unfinished(self._folder, step)  # the room may be what is lacking


def _meeting() -> Barrier:
    several = jax.process_count() > 1
    client = multihost.get_jax_distributed_client() if several else None
    return Barrier(client, jax.process_index(), jax.process_count())


def save(folder: Path, step: int, state: Any, **options: Any) -> None:
    """Writes `state` as `folder/step`, all of it or nothing, and waits. Options are those of `Writer`."""
    writer = CheckpointWriter(folder, **options)
    writer.save(step, state)
    writer.close()
    if writer.failure:
        raise RunError(f"{folder}: {writer.failure}")


def restore_newest(folder: Path, like: Tree, *, warn: Warn | None = None) -> Tree | None:
    """The newest state that is sound; None if nothing was ever saved.

    Args:
      folder: of the checkpoints of a run.
      like: gives structure, shapes, dtypes and, if it has any, shardings.
      warn: hears of every step that is not sound, which is then set aside; without it nothing is moved, as
        for a reader who does not own the run. If no step is sound, that is a RunError either way.
    """
    step = processes.broadcast_from_main(lambda: store.newest_verified(folder, warn))
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
