"""The run directory: what lies where, and the config in and out.

config.json        the exact config
environment.json   versions, devices, the commit
metrics.jsonl      one JSON object a line: what training showed
posterior.jsonl    sigma and signal-to-noise ratio of every layer over training
bad_images.txt     images that could not be read, if there were any
checkpoints/       training states
probe.npz          the linear classifier on the run's frozen features
evaluation.json    every measurement, with the arrays behind it in evaluation/
"""

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from byov_jax import files
from byov_jax.errors import RunError
from byov_jax.training import build

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
POSTERIOR = "posterior.jsonl"
BAD_IMAGES = "bad_images.txt"
CHECKPOINTS = "checkpoints"
PROBE = "probe.npz"
EVALUATION = "evaluation.json"
ARRAYS = "evaluation"
BESIDE = (
    "data.workers",
    "data.on_error",
    "guard.patience",
    "keep.last",
    "keep.every",
    "watchdog",
    "save_every",
)
"""What of a config changes neither what a run learns nor what it logs: it may differ when a run goes on."""

PACKAGES = ("byov-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def create(run: Path, config: dict[str, Any]) -> None:
    """Makes the directory with its config and environment."""
    run.mkdir(parents=True, exist_ok=True)
    files.write_json(run / CONFIG, config)
    files.write_json(run / ENVIRONMENT, environment())


def check_same(run: Path, config: dict[str, Any]) -> bool:
    """Whether `run` holds a run with this config; False if it is not there or empty.

    A directory with anything else in it is a RunError that shows the difference. What is `BESIDE` the run may
    differ, and so may the place of the data if their digest says that they are the same.
    """
    if not run.exists() or (run.is_dir() and not any(run.iterdir())):
        return False
    if not run.is_dir():
        raise RunError(f"workdir {run} is a file: choose another --workdir")
    if not (run / CONFIG).is_file():
        raise RunError(f"workdir {run} is neither empty nor a run directory: choose another --workdir")
    different = differences(read_config(run), build.complete(config))
    if different:
        shown = "; ".join(f"{key} is {there!r} there, {here!r} here" for key, there, here in different[:5])
        more = f"; and {len(different) - 5} more" if len(different) > 5 else ""
        if any(key == "data.digest" for key, _, _ in different):
            more += " (images or labels are others than they were)"
        raise RunError(f"workdir {run} holds another run: {shown}{more}; choose another --workdir")
    return True


def check_unchanged(run: Path, config: dict[str, Any], kept: Any) -> None:
    """The config of a run must be the one that is kept with its states, if one is; a RunError if not."""
    if kept is None:
        return
    try:
        different = differences(build.complete(kept), config)
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{run / CHECKPOINTS} has a config that cannot be read: {error}") from None
    if different:
        key, there, here = different[0]
        raise RunError(f"{run / CONFIG} was changed: {key} is {here!r}, and was {there!r} in the training")


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The keys, dotted, in which two configs differ as runs, with both values; None where one lacks it."""
    known = all(config["data"]["digest"] for config in (first, second))
    mine, theirs = (essential(config, by_digest=known) for config in (first, second))
    keys = [*mine, *(key for key in theirs if key not in mine)]
    return [(key, mine.get(key), theirs.get(key)) for key in keys if mine.get(key) != theirs.get(key)]


def essential(config: dict[str, Any], *, by_digest: bool = True) -> dict[str, Any]:
    """What makes a run what it is, by dotted keys: a complete config without what is `BESIDE` it.

    Its data are known by their digest, or by their place if there is none.
    """
    by_digest = by_digest and bool(config["data"]["digest"])
    beside = (*BESIDE, "data.source" if by_digest else "data.digest")
    flat = _flat(json.loads(json.dumps(config)))
    return {key: value for key, value in flat if key not in beside}


def _flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def read_config(run: Path) -> dict[str, Any]:
    """The config of the run in `run`, complete and checked."""
    if not run.is_dir():
        raise RunError(f"{run} is not a directory")
    file = run / CONFIG
    if not file.is_file():
        raise RunError(f"{run} is not a run directory: it has no {CONFIG}")
    _check_inside(run)
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise RunError(f"{file} must hold one JSON object, not a {type(config).__name__}")
    try:
        return build.complete(config)
    except ValueError as error:
        raise RunError(f"{file} is not a config of byov_jax: {error}") from None


def _check_inside(run: Path) -> None:
    """Whoever reads or writes a run stays in its directory; the directory itself may be a link."""
    for entry in run.iterdir():
        if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(os.path.realpath(run)):
            raise RunError(f"{entry} leads out of the run directory: link the whole directory instead")


def environment() -> dict[str, Any]:
    """Versions and devices of this process, and the commit of the code if it is in a git repository."""
    devices = jax.devices()
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "devices": [f"{device.platform}:{device.device_kind}" for device in devices],
        "commit": commit,
    }


def create_or_open(workdir: Path, config: dict[str, Any]) -> bool:
    """Makes the run directory, or finds this run in it; returns whether it was there.

    A directory that holds anything else or cannot be written is a RunError. What may differ in the config of
    a run that goes on, such as the place of its data, is from now on as it is here.
    """
    try:
        there = check_same(workdir, config)
        if not there:
            create(workdir, config)
        elif read_config(workdir) != build.complete(config):
            files.write_json(workdir / CONFIG, config)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"workdir {workdir} cannot be written ({reason}): choose another --workdir") from None
    return there
