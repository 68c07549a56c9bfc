"""Read and write the files of a run: JSON, JSON lines, .npz. Writes are atomic, and no reader unpickles."""

import contextlib
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile

from byov_jax.errors import RunError


def json_text(value: Any) -> str:
    """Format a value as indented JSON with sorted keys; equal values give equal texts."""
    return json.dumps(value, indent=2, sort_keys=True, default=_plain, allow_nan=False) + "\n"


def nan_to_none(value: Any) -> Any:
    """Replace NaN and infinity by None, since JSON has neither."""
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(file: Path, value: Any) -> None:
    """Write `json_text(value)` atomically."""
    write_text(file, json_text(value))


def write_text(file: Path, text: str) -> None:
    """Write a text atomically: a reader sees the old file or the new one."""
    with _replacing(file) as temporary:
        temporary.write_text(text)


def write_npz(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz file atomically."""
    with _replacing(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def append(file: Path, text: bytes) -> None:
    """Append all of `text`; if that fails, restore the file, as a partial line would join the next one."""
    with file.open("ab", buffering=0) as stream:
        end = stream.tell()
        try:
            while text:
                text = text[stream.write(text) :]
        except OSError:
            stream.truncate(end)
            raise


def read_json(file: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; anything else is a RunError."""
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{file} must hold one JSON object, not a {type(value).__name__}")
    return value


def read_npz(file: Path, prefixes: tuple[str, ...] = ("",)) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file whose names start with one of `prefixes`, by default all.

    A damaged file and a pickled array are a RunError.
    """
    try:
        # np.load would try to unpickle a file that it does not recognize.
        with file.open("rb") as stream, NpzFile(stream, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files if name.startswith(prefixes)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(f"{file} cannot be read as .npz: {error}") from None


class Lines(NamedTuple):
    """The JSON objects of a .jsonl file, and the problem of every damaged line, by its number from 1."""

    objects: list[dict[str, Any]]
    damaged: dict[int, str]


def read_jsonl(file: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics file; an incomplete last line, of a killed process, is dropped.

    Any other line that is not a JSON object with an integer `step` is a RunError.
    """
    objects, damaged = scan_jsonl(file)
    for number, reason in damaged.items():
        raise RunError(f"{file} line {number} {reason}")
    return objects


def scan_jsonl(file: Path) -> Lines:
    """Read a metrics file, and collect damaged lines; an incomplete last line is dropped."""
    result = Lines([], {})
    try:
        texts = file.read_bytes().split(b"\n") if file.is_file() else []
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            result.objects.append(_parse_line(text))
        except (ValueError, RecursionError) as error:
            if number < len(texts):  # text after the last line break is an incomplete line
                result.damaged[number] = str(error)
    return result


def _parse_line(text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    if not isinstance(line, dict):
        raise ValueError(f"must be one JSON object, not a {type(line).__name__}")
    if type(line.get("step")) is not int:
        raise ValueError(f"cannot be read: its step is {line.get('step')!r}")
    return line


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `file` on success, and is removed on failure."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
