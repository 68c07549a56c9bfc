"""A list of the files of a folder with their checksums, so that damage is noticed before it is read."""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from byov_jax.files import json_text, write_text

FILE = "manifest.json"
VERSION = 1


def write(folder: Path, about: dict[str, Any]) -> None:
    """Seals a folder: whatever is changed in it afterwards, `problem` finds."""
    files = {
        name: {"size": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
        for name in _files(folder)
    }
    write_text(folder / FILE, sealed({"version": VERSION, "about": about, "files": files}))


def sealed(body: dict[str, Any]) -> str:
    """The text of a manifest, with a checksum of itself."""
    digest = hashlib.sha256(json_text(body).encode()).hexdigest()
    return json_text(body | {"sha256": digest})


def exists(folder: Path) -> bool:
    """Whether the folder was sealed."""
    return os.path.isfile(folder / FILE)


def read(folder: Path) -> dict[str, Any]:
    """What a folder says about itself; a ValueError if its manifest is missing or damaged."""
    try:
        _check_plain(folder, FILE)
        text = (folder / FILE).read_bytes()
        body = json.loads(text)
        del body["sha256"]
        version, _, _ = body["version"], body["about"].items(), body["files"].items()
        intact = text == sealed(body).encode()
    except FileNotFoundError:
        raise ValueError(f"it has no {FILE}: it was not finished") from None
    except OSError as error:
        raise ValueError(f"its {FILE} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"its {FILE} is damaged") from None
    if not intact:
        raise ValueError(f"its {FILE} is damaged")
    if version != VERSION:
        raise ValueError(f"its {FILE} is of version {version!r}, this is version {VERSION}")
    return body


def find_damage(folder: Path) -> str | None:
    """What is wrong with a sealed folder, in a few words; None if every bit is as it was written."""
    try:
        expected = read(folder)["files"]
        found = set(_files(folder))
        for name in sorted(expected):
            if name not in found:
                return f"{name} is missing"
            if (folder / name).stat().st_size != expected[name]["size"]:
                return f"{name} has {(folder / name).stat().st_size} bytes, expected {expected[name]['size']}"
            if _sha256(folder / name) != expected[name]["sha256"]:
                return f"{name} is damaged"
    except ValueError as error:
        return str(error)
    except (KeyError, TypeError):
        return f"its {FILE} is damaged"
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    stray = sorted(found - set(expected))
    return f"{stray[0]} does not belong to it" if stray else None


def _files(folder: Path) -> list[str]:
    """All files below a folder but the manifest, by their relative names; links are refused."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
        for name in (*folders, *names):
            _check_plain(folder, os.path.relpath(os.path.join(place, name), folder))
    return sorted(name for name in found if name != FILE)


def _check_plain(folder: Path, name: str) -> None:
    """A link may lead out of the folder, and who opens a pipe waits for ever."""
    mode = (folder / name).lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{name} is neither a file nor a folder")


def _raise(error: OSError) -> None:
    raise error


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
