"""Files that are not what they should be: images that cannot be read, folders that change during a run.

Each image is warned of once, and written to bad_images.txt in the run directory.

Every process of a run keeps its own list, of what it met itself: the first bad_images.txt, process i
bad_images.I.txt.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from byov_jax import files
from byov_jax.data.loading import decoded_array
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.data.records import Bad
from byov_jax.training import run_directory

MOST_WARNINGS = 10
"""After so many images a run only counts them."""


class UnreadableImages:
    """The images of a run that could not be read so far, in all its starts."""

    def __init__(self, run: Path, warn: Callable[[str], None]) -> None:
        """Goes on with the list in the directory `run`, if there is one; `warn` is told of what is new."""
        self.file = run / _name(jax.process_index())
        self._warn = warn
        self._known = _read(self.file)
        self._waiting, self._failure = "", ""
        self._new = 0
        self._changed = False

    def __len__(self) -> int:
        return len(self._known)

    def add(self, found: Iterable[Bad]) -> None:
        """Some images could not be read; what is known already is passed over."""
        for name, reason in found:
            name = decoded_array.show(name)
            if name in self._known:
                continue
            self._known.add(name)
            self._waiting += f"{name}\t{reason}\n"
            self._new += 1
            if self._new <= MOST_WARNINGS:
                self._warn(f"{name} cannot be read as an image ({reason}): it is replaced")
            if self._new == MOST_WARNINGS:
                self._warn(f"more such images are only counted, and listed in {self.file}")
        self._write()

    def look(self, *images: Any) -> None:
        """Adds what could not be read of images that are decoded as they are needed; looks at folders."""
        for image in images:
            if not isinstance(image, LazyImages):
                continue
            self.add(Bad(*found) for found in image.bad.items())
            changed = getattr(image.source, "changed", None)
            if changed is None or self._changed or jax.process_index():
                continue
            folder = changed()
            if folder is not None:
                self._changed = True
                self._warn(
                    f"{folder} has changed since the run began: it goes on with the files of the beginning, "
                    "and needs the same ones to be continued"
                )

    def close(self) -> None:
        """Says how many there are, if there are any."""
        self._write()
        if self._known:
            lost = f", which could not be written ({self._failure})" if self._waiting else ""
            self._warn(f"{len(self):,} images could not be read: see {self.file}{lost}")

    def _write(self) -> None:
        """Appends what is new. A full disk does not end a training: it waits for the next time."""
        if not self._waiting:
            return
        try:
            files.append(self.file, self._waiting.encode(errors="backslashreplace"))
            self._waiting = ""
        except OSError as error:
            self._failure = error.strerror or str(error)


def _name(process: int) -> str:
    stem, suffix = Path(run_directory.BAD_IMAGES).stem, Path(run_directory.BAD_IMAGES).suffix
    return f"{stem}.{process}{suffix}" if process else run_directory.BAD_IMAGES


def _read(file: Path) -> set[str]:
    if not file.is_file():
        return set()
    return {line.partition("\t")[0] for line in file.read_text(errors="replace").splitlines()}
