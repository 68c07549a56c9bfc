"""Save and restore training states with orbax: written in the background, verified before they are loaded.

Orbax alone would load a file with a flipped bit; `integrity` and `store` detect it.
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
from byov_jax.errors import RunError, reason

Tree = TypeVar("Tree")
_MAX_REASON = 200  # characters of an error of orbax
_METADATA_BYTES_PER_LEAF = 2**12  # an upper bound on what orbax writes about an array

# Orbax logs every file and the errors that it also raises; after a failed write, coroutines stay unawaited.
logging.getLogger("absl").setLevel(logging.CRITICAL)
logging.getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())
warnings.filterwarnings("ignore", "coroutine 'async_serialize_from_host", RuntimeWarning)


class CheckpointWriter:
    """Saves states in the background while training continues.

    A failed save does not end the training: `failure` says why, earlier checkpoints stay, and the next save
    tries again.

    Attributes:
      saved_step: the last step that was completely written, None if there is none.
      failure: why the last save failed, None if it did not.
    """

    def __init__(
        self, folder: Path, *, metadata: dict[str, Any] | None = None, retention: Retention | None = None
    ) -> None:
        """`metadata` is stored with every checkpoint."""
        self.saved_step: int | None = None
        self.failure: str | None = None
        self._folder, self._metadata = folder.absolute(), metadata or {}
        self._retention = retention or Retention()
        # Compression makes weights a quarter smaller, and saving five times as slow.
        handler = ocp.PyTreeCheckpointHandler(use_compression=False)
        self._barrier = _make_barrier()
        options = ocp.options.AsyncOptions(barrier_sync_fn=self._barrier.wait)
        self._checkpointer = ocp.AsyncCheckpointer(handler, async_options=options)
        self._thread: threading.Thread | None = None

    def save(self, step: int, state: Any) -> None:
        """Start to write `state` as `folder/step`; its buffers may be donated as soon as this returns.

        A state with NaN or infinity is never written.
        """
        self.wait()
        self._barrier.start()
        if not bool(_all_finite(state)):
            self.failure = f"the state of step {step} is not finite and was not saved"
            return
        try:
            processes.run_on_main(lambda: self._prepare(step, state))
            self._checkpointer.save(store.temporary_path(self._folder, step), args=ocp.args.PyTreeSave(state))
        except Exception as error:  # of many types, none of which may end a training
            self._fail(step, error)
            return
        self._thread = threading.Thread(target=self._finish, args=(step,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the current save has finished or failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Wait, and end orbax's threads."""
        self.wait()
        self._checkpointer.close()

    def _prepare(self, step: int, state: Any) -> None:
        leaves = jax.tree.leaves(state)
        store.clear_path(self._folder, step)
        size = sum(leaf.nbytes for leaf in leaves) + _METADATA_BYTES_PER_LEAF * len(leaves)
        store.check_free_space(self._folder, size)

    def _finish(self, step: int) -> None:
        try:
            self._checkpointer.wait_until_finished()
            if processes.is_main():
                path = store.temporary_path(self._folder, step)
                integrity.write(path, self._metadata | {"step": step})
                path.rename(self._folder / str(step))
        except Exception as error:
            self._fail(step, error)
            return
        self.saved_step, self.failure = step, None
        if processes.is_main():
            store.apply_retention(self._folder, self._retention)

    def _fail(self, step: int, error: Exception) -> None:
        self.failure = f"step {step} could not be saved ({reason(error)[:_MAX_REASON]})"
        self._barrier.abort(reason(error)[:_MAX_REASON])
        if jax.process_count() == 1:  # with several, others may still be writing there
            store.remove_unfinished(self._folder, step)  # frees its disk space


def _make_barrier() -> Barrier:
    client = multihost.get_jax_distributed_client() if jax.process_count() > 1 else None
    return Barrier(client, jax.process_index(), jax.process_count())


def save(folder: Path, step: int, state: Any, **options: Any) -> None:
    """Write `state` as `folder/step`, completely or not at all, and wait; options of `CheckpointWriter`."""
    writer = CheckpointWriter(folder, **options)
    writer.save(step, state)
    writer.close()
    if writer.failure:
        raise RunError(f"{folder}: {writer.failure}")


def restore_newest(
    folder: Path, target: Tree, *, warn: Warn | None = None, partial: bool = False
) -> Tree | None:
    """Restore the newest state that passes verification; None if nothing was ever saved.

    Args:
      folder: the checkpoints of a run.
      target: gives structure, shapes, dtypes and, if it has any, shardings.
      warn: called with a message for every step that failed verification, which is then moved to quarantine;
        without it, as for a reader that does not own the run, nothing is moved. If no step passes, that is a
        RunError either way.
      partial: `target` is a part of the state; the rest is not read.
    """
    step = processes.broadcast_from_main(lambda: store.newest_verified(folder, warn))
    return None if step < 0 else restore(folder, step, target, partial=partial)


def restore(folder: Path, step: int, target: Tree, *, partial: bool = False) -> Tree:
    """Restore a verified state; `target` as in `restore_newest`.

    A state with other leaves, or leaves of another shape, is a RunError that names the first of them.
    """
    path = (folder / str(step)).absolute()
    if not path.is_dir():
        raise RunError(f"there is no checkpoint {folder / str(step)}")
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def abstract(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or device)

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        try:
            _check_shapes(checkpointer.metadata(path).item_metadata.tree, target, partial)
            abstract_target = jax.tree.map(abstract, target)
            arguments = ocp.args.PyTreeRestore(
                item=abstract_target,
                restore_args=ocp.checkpoint_utils.construct_restore_args(abstract_target),
                partial_restore=partial,
            )
            return checkpointer.restore(path, args=arguments)
        except Exception as error:  # of many types, each of which means that the state cannot be used
            raise RunError(
                f"checkpoint {folder / str(step)} cannot be read: {reason(error)[:_MAX_REASON]}"
            ) from error


@jax.jit
def _all_finite(state: Any) -> Any:
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def _check_shapes(stored: Any, target: Any, partial: bool) -> None:
    """Raise at the first difference; orbax would drop leaves that are None in `target`."""
    found, expected = _shapes(stored), _shapes(target)
    for path in expected if partial else expected | found:
        shape, wanted = (shapes.get(path, "absent") for shapes in (found, expected))
        if shape != wanted:
            raise ValueError(f"{path} is {shape}, expected {wanted}")


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        jax.tree_util.keystr(keys, simple=True, separator="/"): tuple(leaf.shape)
        for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
