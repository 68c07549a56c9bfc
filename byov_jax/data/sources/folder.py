"""A folder of image files: its splits, classes and labels."""

import hashlib
import os
from itertools import compress
from operator import not_
from pathlib import Path
from typing import NamedTuple

import numpy as np

from byov_jax.data.dataset import NO_LABEL, PackedStrings, Record, SourceDataset
from byov_jax.errors import printable

TRAIN = "train"
TESTS = ("test", "val", "validation")
"""Names of the folder with the test images, in order of preference."""

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
CLASS_SHARE, SHARE = 5, 10
"""Without a test folder, one image in this many is held out: of train/CLASS/, and of other folders."""


class Files(NamedTuple):
    """The paths and labels of both splits, and the class names: -1 and none without labels."""

    train: list[str]
    train_label: list[int]
    test: list[str]
    test_label: list[int]
    classes: tuple[str, ...]
    description: str


def open_dataset(folder: Path) -> SourceDataset:
    """Open a folder of images, see `find_files`."""
    files = find_files(folder)
    train, test = (
        FolderSource(paths, label, _folder_mtimes(folder, paths))
        for paths, label in ((files.train, files.train_label), (files.test, files.test_label))
    )
    return SourceDataset(train, test, files.classes, files.description)


class FolderSource:
    """Image files, named by their paths."""

    def __init__(self, paths: list[str], label: list[int], mtimes: dict[str, int]) -> None:
        """`mtimes` holds the modification time of each folder that was read."""
        self._paths, self.label = PackedStrings(paths), np.array(label, np.int32)
        self._mtimes = mtimes

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> Record:
        return Record(Path(self._paths[i]).read_bytes(), int(self.label[i]))

    def name(self, i: int) -> str:
        return printable(self._paths[i])

    def file_names(self) -> list[bytes]:
        return self._paths.base_names()

    def changed_folder(self) -> str | None:
        """Return a folder in which files were added, removed or renamed since opening, or None."""
        changed = (folder for folder, mtime in self._mtimes.items() if _mtime(folder) != mtime)
        return next(map(printable, changed), None)


def find_files(folder: Path) -> Files:
    """List the images in `folder`, sorted by class and path.

    With labels: train/CLASS/ and test/CLASS/ (or val/, validation/), or CLASS/ if there is no train/; at any
    depth below the class folder. Without: train/ itself, or any depth below `folder` if it has neither train/
    nor class folders (see `_has_classes`). Without a test folder, some images are held out: see `held_out`.
    """
    train, test = _splits(folder)
    classes = _class_names(train) if train != folder or _has_classes(folder) else []
    groups = [_images(train / name) for name in classes] or [_images(train)]
    each = " of each class" if classes else ""
    if test is not None:
        held = _test_groups(test, train, classes) if classes else [_images(test)]
        description = f"test images from {test.name}/"
    else:
        share = CLASS_SHARE if classes and train != folder else SHARE
        prefix = f"{train}{os.sep}"
        flags = [held_out([path.removeprefix(prefix) for path in paths], share) for paths in groups]
        held = [list(compress(paths, out)) for paths, out in zip(groups, flags, strict=True)]
        groups = [list(compress(paths, map(not_, out))) for paths, out in zip(groups, flags, strict=True)]
        description = f"test images: one in {share}{each}, held out by a hash of the path"
    if not any(held):
        raise ValueError(
            f"{printable(train)} has one image{each} and none to hold out: "
            f"add images, or a folder {TESTS[0]}/ next to {TRAIN}/"
        )
    labels = f"{len(classes)} classes" if classes else "no labels"
    first = 0 if classes else NO_LABEL
    return Files(*_flatten(groups, first), *_flatten(held, first), tuple(classes), f"{labels}; {description}")


def held_out(names: list[str], share: int) -> list[bool]:
    """Select the test images: one in `share`, at least one of two or more, never all.

    Each name is selected by its own hash, so it keeps its split when images are added. The exception is a
    group so small that no hash, or every hash, falls into the share.
    """
    hashes = [int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") for name in names]
    count = sum(value < 2**64 // share for value in hashes)
    by_hash = sorted(range(len(names)), key=hashes.__getitem__)
    selected = set(by_hash[: min(max(count, 1), len(names) - 1)])
    return [i in selected for i in range(len(names))]


def _folder_mtimes(root: Path, paths: list[str]) -> dict[str, int]:
    """Return the modification times of the folders of `paths` and of their parents up to `root`."""
    folders = {path.rpartition(os.sep)[0] for path in paths}
    parents = {str(path) for folder in folders for path in Path(folder).parents if path.is_relative_to(root)}
    if (root / TRAIN).is_dir():  # other content of the root is not read
        parents.discard(str(root))
    return {folder: _mtime(folder) for folder in sorted(folders | parents)}


def _mtime(folder: str) -> int:
    """Return a folder's modification time, 0 if it does not exist."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _splits(folder: Path) -> tuple[Path, Path | None]:
    """Return the folders of the training images and of the test images, if there is one."""
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    test = next((folder / name for name in TESTS if name in names), None)
    if TRAIN in names:
        return folder / TRAIN, test
    split = next((name for name in names if name.lower() in (TRAIN, *TESTS)), None)
    if split is not None:
        raise ValueError(
            f"{printable(folder)} has {split}/ but no {TRAIN}/: name the folder to train on {TRAIN}"
        )
    return folder, None


def _has_classes(folder: Path) -> bool:
    """Return whether a folder without train/ has class folders: two or more, and no images next to them."""
    entries = _entries(folder)
    files = [entry.name for entry in entries if not entry.is_dir()]
    return len(entries) - len(files) > 1 and not any(name.lower().endswith(SUFFIXES) for name in files)


def _class_names(split: Path) -> list[str]:
    """Return the sorted names of a split's class folders, none if it holds the images itself."""
    entries = _entries(split)
    folders = [entry.name for entry in entries if entry.is_dir()]
    files = [split / entry.name for entry in entries if not entry.is_dir()]
    if folders and files:
        raise ValueError(
            f"{printable(files[0])} is next to class folders ({printable(folders[0])}): "
            "move it into the folder of its class, or out"
        )
    return folders


def _test_groups(test: Path, train: Path, classes: list[str]) -> list[list[str]]:
    """Return the test images of each class."""
    names = _class_names(test)
    unknown = [name for name in names if name not in classes]
    if unknown:
        known = ", ".join(map(printable, classes[:10])) + _more(classes[9:], ", ...")
        raise ValueError(
            f"{printable(test / unknown[0])}{_more(unknown, ' and {} more')}: "
            f"{printable(train)} has no such class, it has {known}"
        )
    if not names and _images(test):
        raise ValueError(
            f"{printable(test)} holds images, {printable(train)} class folders: "
            "sort the test images into the same folders, or move them out"
        )
    return [_images(test / name) if name in names else [] for name in classes]


def _images(folder: Path) -> list[str]:
    """Return all images below `folder`, sorted; no images, or any other file, is an error."""
    images: list[str] = []
    others: list[str] = []
    _walk(str(folder), images, others, parents=())
    if others:
        raise ValueError(
            f"{printable(others[0])}{_more(others, ' and {} more')}: not an image file, remove it; "
            f"images end in {', '.join(SUFFIXES)}"
        )
    if not images:
        raise ValueError(f"{printable(folder)} holds no images, that is files in {', '.join(SUFFIXES)}")
    return images


def _walk(folder: str, images: list[str], others: list[str], parents: tuple[str, ...]) -> None:
    real = os.path.realpath(folder)
    if real in parents:
        raise ValueError(f"{printable(folder)} is a link to one of its parent folders: remove it")
    for entry in _entries(folder):
        path = os.path.join(folder, entry.name)
        if entry.is_dir():
            _walk(path, images, others, (*parents, real))
        # Broken links are reported when they are opened; opening a pipe or socket would block.
        elif entry.name.lower().endswith(SUFFIXES) and (entry.is_file() or entry.is_symlink()):
            images.append(path)
        else:
            others.append(path)


def _entries(folder: str | Path) -> list[os.DirEntry]:
    """Return the entries of a folder, sorted by name, without hidden ones."""
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)


def _flatten(groups: list[list[str]], first: int) -> tuple[list[str], list[int]]:
    """Return the paths of all classes, and the label of each; labels count from `first`."""
    pairs = [(path, label) for label, paths in enumerate(groups, first) for path in paths]
    return [path for path, _ in pairs], [label for _, label in pairs]


def _more(names: list, text: str) -> str:
    """Return `text` with the number of names after the first, or "" if there is only one."""
    return text.format(f"{len(names) - 1:,}") if len(names) > 1 else ""
