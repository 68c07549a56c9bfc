"""Manifest of a folder: the checksums of its files, so that damage is detected before anything is loaded."""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from byov_jax.files import json_text, write_text

MANIFEST = "manifest.json"
VERSION = 1


def write(folder: Path, metadata: dict[str, Any]) -> None:
    """Write the manifest of a folder; `find_damage` reports every later change."""
    files = {
        name: {"size": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
        for name in _files(folder)
    }
    write_text(folder / MANIFEST, manifest_text({"version": VERSION, "about": metadata, "files": files}))


def manifest_text(body: dict[str, Any]) -> str:
    """Format a manifest, with a checksum of itself."""
    digest = hashlib.sha256(json_text(body).encode()).hexdigest()
    return json_text(body | {"sha256": digest})


def exists(folder: Path) -> bool:
    """Return whether the folder has a manifest."""
    return os.path.isfile(folder / MANIFEST)


def read(folder: Path) -> dict[str, Any]:
    """Read `version`, `about` (the metadata) and `files`; a ValueError if missing or damaged."""
    try:
        _check_type(folder, MANIFEST)
        text = (folder / MANIFEST).read_bytes()
        body = json.loads(text)
        del body["sha256"]
        version, _, _ = body["version"], body["about"].items(), body["files"].items()
        intact = text == manifest_text(body).encode()
    except FileNotFoundError:
        raise ValueError(f"{MANIFEST} is missing: saving was interrupted") from None
    except OSError as error:
        raise ValueError(f"{MANIFEST} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"{MANIFEST} is damaged") from None
    if not intact:
        raise ValueError(f"{MANIFEST} is damaged")
    if version != VERSION:
        raise ValueError(f"{MANIFEST} is of version {version!r}, expected {VERSION}")
    return body


def find_damage(folder: Path) -> str | None:
    """Return the first difference between a folder and its manifest, None if there is none."""
    try:
        expected = read(folder)["files"]
        names = set(_files(folder))
        for name in sorted(expected):
            if name not in names:
                return f"{name} is missing"
            size = (folder / name).stat().st_size
            if size != expected[name]["size"]:
                return f"{name} has {size} bytes, expected {expected[name]['size']}"
            if _sha256(folder / name) != expected[name]["sha256"]:
                return f"{name} is damaged"
    except ValueError as error:
        return str(error)
    except (KeyError, TypeError):
        return f"{MANIFEST} is damaged"
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    unexpected = sorted(names - set(expected))
    return f"{unexpected[0]} is not in {MANIFEST}" if unexpected else None


def _files(folder: Path) -> list[str]:
    """List all files below a folder but the manifest, by relative name; a link is a ValueError."""
    files = []
    for parent, folders, names in os.walk(folder, onerror=_raise):
        files += [os.path.relpath(os.path.join(parent, name), folder) for name in names]
        for name in (*folders, *names):
            _check_type(folder, os.path.relpath(os.path.join(parent, name), folder))
    return sorted(name for name in files if name != MANIFEST)


def _check_type(folder: Path, name: str) -> None:
    """Reject links, which may point outside the folder, and pipes, which block when opened."""
    mode = (folder / name).lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{name} is neither a file nor a folder")


def _raise(error: OSError) -> None:
    raise error


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
