"""Report images that cannot be read, and folders that change during a run.

Each image causes one warning and one line in bad_images.txt in the run directory. With several processes,
process i writes bad_images.I.txt.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from byov_jax import errors, files
from byov_jax.data.dataset import UnreadableImage
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.training import run_directory

MOST_WARNINGS = 10
"""Images beyond this number are only counted."""


class UnreadableImages:
    """The unreadable images of a run so far, also before it was resumed."""

    def __init__(self, run: Path, warn: Callable[[str], None]) -> None:
        """Continue the list in the directory `run`, if it has one; `warn` is called for new images."""
        self.file = run / _name(jax.process_index())
        self._warn = warn
        self._known = _read(self.file)
        self._pending, self._failure = "", ""
        self._new = 0
        self._changed = False

    def __len__(self) -> int:
        return len(self._known)

    def add(self, found: Iterable[UnreadableImage]) -> None:
        """Add images that could not be read; known ones are ignored."""
        for name, reason in found:
            name = errors.printable(name)
            if name in self._known:
                continue
            self._known.add(name)
            self._pending += f"{name}\t{reason}\n"
            self._new += 1
            if self._new <= MOST_WARNINGS:
                self._warn(f"{name} cannot be read as an image ({reason}): it is replaced")
            if self._new == MOST_WARNINGS:
                self._warn(f"more such images are only counted, and listed in {self.file}")
        self._write()

    def check(self, *images: Any) -> None:
        """Add the unreadable images of lazy data sets, and warn if their folder has changed."""
        for image in images:
            if not isinstance(image, LazyImages):
                continue
            self.add(UnreadableImage(*found) for found in image.unreadable.items())
            changed = getattr(image.source, "changed_folder", None)
            if changed is None or self._changed or jax.process_index():
                continue
            folder = changed()
            if folder is not None:
                self._changed = True
                self._warn(
                    f"{folder} has changed since the run began: training continues with the original list of "
                    "files; restore it, or the run cannot be resumed"
                )

    def close(self) -> None:
        """Warn of the number of images, if there are any."""
        self._write()
        if self._known:
            lost = f", which could not be written ({self._failure})" if self._pending else ""
            self._warn(f"{len(self):,} images could not be read: see {self.file}{lost}")

    def _write(self) -> None:
        """Append new lines; if the disk is full they are kept for the next attempt."""
        if not self._pending:
            return
        try:
            files.append(self.file, self._pending.encode(errors="backslashreplace"))
            self._pending = ""
        except OSError as error:
            self._failure = error.strerror or str(error)


def _name(process: int) -> str:
    stem, suffix = Path(run_directory.BAD_IMAGES).stem, Path(run_directory.BAD_IMAGES).suffix
    return f"{stem}.{process}{suffix}" if process else run_directory.BAD_IMAGES


def _read(file: Path) -> set[str]:
    if not file.is_file():
        return set()
    return {line.partition("\t")[0] for line in file.read_text(errors="replace").splitlines()}
