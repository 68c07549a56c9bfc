"""The run directory: what lies where, and the config in and out.

config.json        the exact config
environment.json   versions and devices
checkpoints/       training states
probe.npz          the linear classifier on the run's frozen features
evaluation.json    every measurement, with the arrays behind it in evaluation/
"""

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from byov_jax.train import recipe

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
CHECKPOINTS = "checkpoints"
PROBE = "probe.npz"
EVALUATION = "evaluation.json"
ARRAYS = "evaluation"
PACKAGES = ("byov-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class RunError(ValueError):
    """A run directory that cannot be used; the message is one line that says why."""


def create(run: Path, config: dict[str, Any]) -> None:
    """Makes the directory with its config and environment."""
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / CONFIG, config)
    write_json(run / ENVIRONMENT, environment())


def read_config(run: Path) -> dict[str, Any]:
    """The config of the run in `run`, complete and checked."""
    if not run.is_dir():
        raise RunError(f"{run} is not a directory")
    file = run / CONFIG
    if not file.is_file():
        raise RunError(f"{run} is not a run directory: it has no {CONFIG}")
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise RunError(f"{file} must hold one JSON object, not a {type(config).__name__}")
    try:
        return recipe.complete(config)
    except ValueError as error:
        raise RunError(f"{file} is not a config of byov_jax: {error}") from None


def environment() -> dict[str, Any]:
    """Versions and devices of this process."""
    devices = jax.devices()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "devices": [f"{device.platform}:{device.device_kind}" for device in devices],
    }


def write_json(file: Path, value: Any) -> None:
    """Writes JSON through a temporary file, so that a reader sees the old or the new and never a part."""
    text = json.dumps(value, indent=2, sort_keys=True, default=_plain, allow_nan=False)
    with _replacing(file) as temporary:
        temporary.write_text(text + "\n")


def write_arrays(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes an .npz file in the same way."""
    with _replacing(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """A temporary file that takes the place of `file` once it is written, and vanishes if it cannot be."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in JSON")
