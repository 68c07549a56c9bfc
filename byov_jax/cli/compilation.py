"""The compilation cache of the commands: what one compiled, the next one loads, and how long it took.

JAX's persistent cache, on by default, in the user's cache directory. Importing byov_jax changes no setting of
JAX: only commands call `enable`.
"""

import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import jax

from byov_jax import files
from byov_jax.distributed import processes
from byov_jax.errors import RunError
from byov_jax.training import run_directory
from byov_jax.training.config import Config

SETTINGS = {
    "jax_compilation_cache_max_size": 2**30,  # bytes, beyond which the least recently used programs go
    "jax_persistent_cache_min_compile_time_secs": 0.1,  # reading a file is not much faster than that
}
"""JAX's settings of the cache, unless the environment has them."""

OFF = "off"
SECONDS = "compile_seconds.json"
"""The durations of the last compilations, in the directory of the cache."""

MAX_SECONDS = 1000
"""At most this many durations are kept."""

BESIDE = ("seed", "data.source", "data.digest", "log_every", "monitor_every", "monitor_images")
"""Keys of a config that no duration depends on."""

LOCK_TIMEOUT = 10.0
"""Seconds to wait for another process, as JAX does."""


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Add --compilation_cache to the parser of a command that compiles."""
    parser.add_argument(
        "--compilation_cache",
        metavar="DIR",
        help="where compiled programs are kept for the next start, at most 1 GiB of them, or off "
        "(default: byov_jax in the user's cache directory)",
    )


def default_directory() -> Path:
    """Return the folder byov_jax in the user's cache directory."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "byov_jax"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "byov_jax"


def enable(place: str | None) -> None:
    """Keep compiled programs in a directory; if it cannot be written, say so and go on without.

    Several processes may share it. JAX_ENABLE_COMPILATION_CACHE and JAX_COMPILATION_CACHE_DIR are respected.

    Args:
      place: a directory, "off", or None for the default.
    """
    if place == OFF:
        jax.config.update("jax_enable_compilation_cache", False)
    if not _setting("jax_enable_compilation_cache"):
        return
    if place is None and _setting("jax_compilation_cache_dir"):
        return
    if place is not None and "://" in place:  # a bucket
        jax.config.update("jax_compilation_cache_dir", place)
        return
    try:
        folder = default_directory() if place is None else Path(place).absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_incomplete(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        reason = getattr(error, "strerror", None) or error
        where = getattr(error, "filename", None) or place or "the user's cache directory"
        jax.config.update("jax_compilation_cache_dir", None)
        if processes.is_main():
            text = f"compilation cache: {where} cannot be written ({reason}): continuing without"
            print(text, file=sys.stderr, flush=True)
        return
    for name, value in SETTINGS.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", str(folder))


def _remove_incomplete(folder: Path) -> None:
    """Remove programs without a time of access, which is written last, and without which JAX cannot evict."""
    with filelock.FileLock(folder / ".lockfile", timeout=LOCK_TIMEOUT):  # the lock that JAX takes to write
        for program in folder.glob("*-cache"):
            if not program.with_name(f"{program.name.removesuffix('-cache')}-atime").exists():
                program.unlink(missing_ok=True)


@contextmanager
def timed(what: str, config: Config, say: Callable[[str], None]) -> Iterator[None]:
    """Say what is compiled and how long it took last time, and note how long it takes.

    Args:
      what: such as "the training step".
      config: that of the training.
      say: called with the text, in the main process.
    """
    if not processes.is_main():
        yield
        return
    key = _key(what, config)
    last = _last_seconds().get(key)
    say(f"compiling {what}" + ("" if last is None else f" ({max(round(last), 1)} s last time)"))
    start = time.perf_counter()
    yield
    _note(key, time.perf_counter() - start)


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def _directory() -> Path | None:
    """Return the local directory in use, None without one."""
    folder = _setting("jax_compilation_cache_dir")
    if not folder or "://" in folder or not _setting("jax_enable_compilation_cache"):
        return None
    return Path(folder)


def _key(what: str, config: Config) -> str:
    """Return what the duration depends on: most of the config, and the devices."""
    values = {name: value for name, value in run_directory.identity(config).items() if name not in BESIDE}
    text = files.json_text([what, values, jax.device_count(), jax.devices()[0].device_kind])
    return f"{config.method}, {what}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _last_seconds() -> dict[str, float]:
    """Return the durations by key, the oldest first; none if they cannot be read."""
    folder = _directory()
    try:
        found = files.read_json(folder / SECONDS) if folder is not None else {}
    except RunError:
        return {}
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


def _note(key: str, seconds: float) -> None:
    """Keep a duration for the next start, if the directory can be written."""
    folder = _directory()
    if folder is None:
        return
    others = {other: value for other, value in _last_seconds().items() if other != key}
    newest = [*others.items(), (key, round(seconds, 1))][-MAX_SECONDS:]
    with contextlib.suppress(OSError):
        files.write_text(folder / SECONDS, json.dumps(dict(newest), indent=2) + "\n")
