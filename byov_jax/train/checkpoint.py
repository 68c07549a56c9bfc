"""Training states on disk, by orbax."""

import logging
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

Tree = TypeVar("Tree")
logging.getLogger("absl").setLevel(logging.WARNING)  # orbax narrates every file


def save(directory: Path, step: int, state: Tree) -> None:
    """Writes `state` as `directory/step`, all of it or nothing."""
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(directory.absolute(), options=options) as manager:
        manager.save(step, args=ocp.args.StandardSave(state), force=True)


def latest(directory: Path) -> int | None:
    """The newest step that was completely written; None if there is none."""
    if not directory.is_dir():
        return None
    with ocp.CheckpointManager(directory.absolute()) as manager:
        return manager.latest_step()


def restore(directory: Path, step: int, like: Tree) -> Tree:
    """Reads a state; `like` gives its structure, shapes and dtypes, abstract or not.

    A checkpoint with other leaves, or leaves of another shape, is a ValueError that names the first of them.
    """
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), like)
    handler = ocp.StandardCheckpointHandler()
    if not any((directory / str(step)).iterdir()):
        raise ValueError("it is empty")
    with ocp.CheckpointManager(directory.absolute(), item_handlers=handler) as manager:
        _check_shapes(manager.item_metadata(step).tree, like)
        return manager.restore(step, args=ocp.args.StandardRestore(abstract))


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
