"""The run directory: its files, and the config in and out.

config.json        the complete config
environment.json   versions, devices, the commit
metrics.jsonl      training metrics, one JSON object per line
posterior.jsonl    sigma and signal-to-noise ratio of every layer over training
bad_images.txt     images that could not be read, if any
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
from byov_jax.errors import ConfigError, RunError
from byov_jax.training import earlier_runs, schema
from byov_jax.training.config import Config

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
POSTERIOR = "posterior.jsonl"
BAD_IMAGES = "bad_images.txt"
CHECKPOINTS = "checkpoints"
PROBE = "probe.npz"
EVALUATION = "evaluation.json"
ARRAYS = "evaluation"
PACKAGES = ("byov-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def create(run: Path, config: Config) -> None:
    """Make the directory with its config and environment."""
    run.mkdir(parents=True, exist_ok=True)
    files.write_json(run / CONFIG, config.to_dict())
    files.write_json(run / ENVIRONMENT, environment())


def create_or_open(workdir: Path, config: Config) -> bool:
    """Make the run directory, or open it if it holds this run; return whether it existed.

    A directory that holds anything else or cannot be written is a RunError. Values that may change in a
    resumed run, such as the place of its data, are replaced by those of `config`.
    """
    try:
        exists = holds_run(workdir, config)
        if not exists:
            create(workdir, config)
        elif read_config(workdir) != config:
            files.write_json(workdir / CONFIG, config.to_dict())
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"workdir {workdir} cannot be written ({reason}): choose another --workdir") from None
    return exists


def holds_run(run: Path, config: Config) -> bool:
    """Return whether `run` holds a run with this config; False if it does not exist or is empty.

    A directory with anything else in it is a RunError that shows the difference, as `differences` has it.
    """
    if not run.exists() or (run.is_dir() and not any(run.iterdir())):
        return False
    if not run.is_dir():
        raise RunError(f"workdir {run} is a file: choose another --workdir")
    if not (run / CONFIG).is_file():
        raise RunError(f"workdir {run} is neither empty nor a run directory: choose another --workdir")
    different = differences(read_config(run), config)
    if different:
        shown = "; ".join(f"{key} is {theirs!r} there, {ours!r} here" for key, theirs, ours in different[:5])
        more = f"; and {len(different) - 5} more" if len(different) > 5 else ""
        if any(key == "data.digest" for key, _, _ in different):
            more += " (the images or labels are not the same)"
        raise RunError(f"workdir {run} holds another run: {shown}{more}; choose another --workdir")
    return True


def check_unchanged(run: Path, config: Config, saved: Any) -> None:
    """Raise a RunError if config.json differs from the config saved with the states, if any."""
    if saved is None:
        return
    try:
        different = differences(Config.parse(earlier_runs.upgraded(saved)), config)
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{run / CHECKPOINTS} has a config that cannot be read: {error}") from None
    if different:
        key, before, now = different[0]
        raise RunError(f"{run / CONFIG} was changed: {key} is {now!r}, and was {before!r} in the training")


def differences(first: Config, second: Config) -> list[tuple[str, Any, Any]]:
    """List the dotted keys in which two configs differ as runs, with both values; None where one lacks it."""
    by_digest = bool(first.data.digest and second.data.digest)
    ours, theirs = (identity(config, by_digest=by_digest) for config in (first, second))
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [(key, ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)]


def identity(config: Config, *, by_digest: bool = True) -> dict[str, Any]:
    """Return the values that decide what a run learns and logs, by dotted keys.

    Data are identified by their digest, or by their place without one.
    """
    by_digest = by_digest and bool(config.data.digest)
    ignored = {key.name for key in schema.keys(Config) if key.may_change}
    ignored.add("data.source" if by_digest else "data.digest")
    flat = _flat(json.loads(json.dumps(config.to_dict())))
    return {key: value for key, value in flat if key not in ignored}


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def read_config(run: Path) -> Config:
    """Return the config of a run, complete and checked."""
    if not run.is_dir():
        raise RunError(f"{run} is not a directory")
    file = run / CONFIG
    if not file.is_file():
        raise RunError(f"{run} is not a run directory: it has no {CONFIG}")
    _check_links(run)
    try:
        return Config.parse(earlier_runs.upgraded(files.read_json(file)))
    except ConfigError as error:
        raise RunError(f"{file} is not a config of byov_jax: {error}") from None


def _check_links(run: Path) -> None:
    """Refuse links that lead out of the directory; the directory itself may be a link."""
    for entry in run.iterdir():
        if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(os.path.realpath(run)):
            raise RunError(f"{entry} leads out of the run directory: link the whole directory instead")


def environment() -> dict[str, Any]:
    """Return versions, devices, and the commit of the code if it is in a git repository."""
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
