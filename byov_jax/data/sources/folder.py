"""A folder of images: which files it holds, in which split and class."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from byov_jax.data.loading import decoded_array
from byov_jax.data.records import NO_LABEL, Names, Record, Records

TRAIN = "train"
TESTS = ("test", "val", "validation")
"""Names of the folder with the test images; the first that exists is read."""

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
LABELLED_SHARE, UNLABELLED_SHARE = 5, 10
"""Without a test folder, one in so many images is held out."""


class Files(NamedTuple):
    """The paths of both splits, the numbers of their classes, and the names: -1 and none without labels."""

    train: list[str]
    train_label: list[int]
    test: list[str]
    test_label: list[int]
    classes: tuple[str, ...]
    description: str


def open(folder: Path) -> Records:
    """The images of a folder, to be read one by one; see `find`."""
    files = find(folder)
    train, test = (
        Folder(paths, label, _stamps(folder, paths))
        for paths, label in ((files.train, files.train_label), (files.test, files.test_label))
    )
    return Records(train, test, files.classes, files.description)


class Folder:
    """Image files, named by their paths."""

    def __init__(self, paths: list[str], label: list[int], stamps: dict[str, int]) -> None:
        """`stamps` says when the folders that the images lie in were last changed."""
        self._paths, self.label = Names(paths), np.array(label, np.int32)
        self._stamps = stamps

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> Record:
        return Record(Path(self._paths[i]).read_bytes(), int(self.label[i]))

    def name(self, i: int) -> str:
        """Its path."""
        return decoded_array.show(self._paths[i])

    def file_names(self) -> list[bytes]:
        """The names of the files without their folders."""
        return self._paths.without_folders()

    def changed(self) -> str | None:
        """A folder in which files were added, removed or renamed since this was opened, None if in none."""
        return next(
            (decoded_array.show(one) for one, stamp in self._stamps.items() if _stamp(one) != stamp), None
        )


def find(folder: Path) -> Files:
    """The images in `folder`, sorted by class and path.

    With labels they lie in train/CLASS/ and test/CLASS/ (or val/, validation/), at any depth below the folder
    of their class. Without, they lie in train/ itself, or at any depth where there is no train/. If there is
    no test folder, some are held out: see `held_out`.
    """
    train, test = _splits(folder)
    classes = _classes(train) if train != folder else []
    groups = [_images(train / name) for name in classes] or [_images(train)]
    each = " of each class" if classes else ""
    if test is not None:
        held = _test_groups(test, train, classes) if classes else [_images(test)]
        description = f"test images from {test.name}/"
    else:
        share = LABELLED_SHARE if classes else UNLABELLED_SHARE
        names = [[path.removeprefix(f"{train}{os.sep}") for path in paths] for paths in groups]
        flags = [held_out(group, share) for group in names]
        held = [_where(paths, flag, True) for paths, flag in zip(groups, flags, strict=True)]
        groups = [_where(paths, flag, False) for paths, flag in zip(groups, flags, strict=True)]
        description = f"test images: one in {share}{each}, held out by a hash of the path"
    if not any(held):
        raise ValueError(
            f"{decoded_array.show(train)} has one image{each} and none to hold out: "
            f"add images, or a folder {TESTS[0]}/ beside {TRAIN}/"
        )
    labels = f"{len(classes)} classes" if classes else "no labels"
    first = 0 if classes else NO_LABEL
    return Files(*_flat(groups, first), *_flat(held, first), tuple(classes), f"{labels}; {description}")


def held_out(names: list[str], share: int) -> list[bool]:
    """Which images become test images: one in `share`, at least one of two or more, never all.

    Each goes by the hash of its own name, so it stays where it is when others are added. Only among a few
    images may one move, namely where no hash or every hash falls into the share.
    """
    hashes = [int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") for name in names]
    count = sum(value < 2**64 // share for value in hashes)
    by_hash = sorted(range(len(names)), key=hashes.__getitem__)
    chosen = set(by_hash[: min(max(count, 1), len(names) - 1)])
    return [i in chosen for i in range(len(names))]


def _stamps(root: Path, paths: list[str]) -> dict[str, int]:
    """When the folders that `paths` lie in were last changed, and those above them."""
    folders = {path.rpartition(os.sep)[0] for path in paths}
    above = {str(one) for folder in folders for one in Path(folder).parents if one.is_relative_to(root)}
    if (root / TRAIN).is_dir():  # what lies beside it is not read
        above.discard(str(root))
    return {folder: _stamp(folder) for folder in sorted(folders | above)}


def _stamp(folder: str) -> int:
    """When a folder was last changed, 0 if it is gone."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _splits(folder: Path) -> tuple[Path, Path | None]:
    """Where the training images are, and where the test images are if they have a folder."""
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    test = next((folder / name for name in TESTS if name in names), None)
    if TRAIN in names:
        return folder / TRAIN, test
    split = next((name for name in names if name.lower() in (TRAIN, *TESTS)), None)
    if split is not None:
        raise ValueError(
            f"{decoded_array.show(folder)} has {split}/ but no {TRAIN}/: name the folder to train on {TRAIN}"
        )
    return folder, None


def _classes(split: Path) -> list[str]:
    """The sorted names of the class folders of a split; none if the images lie in the split itself."""
    entries = _entries(split)
    folders = [entry.name for entry in entries if entry.is_dir()]
    files = [split / entry.name for entry in entries if not entry.is_dir()]
    if folders and files:
        raise ValueError(
            f"{decoded_array.show(files[0])} lies beside folders of classes "
            f"({decoded_array.show(folders[0])}): move it into the folder of its class, or out"
        )
    return folders


def _test_groups(test: Path, train: Path, classes: list[str]) -> list[list[str]]:
    """The test images of each class."""
    found = _classes(test)
    unknown = [name for name in found if name not in classes]
    if unknown:
        some = ", ".join(map(decoded_array.show, classes[:10])) + _more(classes[9:], ", ...")
        raise ValueError(
            f"{decoded_array.show(test / unknown[0])}{_more(unknown, ' and {} more')}: "
            f"{decoded_array.show(train)} has no such class, it has {some}"
        )
    if not found and _images(test):
        raise ValueError(
            f"{decoded_array.show(test)} holds images, {decoded_array.show(train)} folders of classes: "
            "sort the test images into the same folders, or move them out"
        )
    return [_images(test / name) if name in found else [] for name in classes]


def _images(folder: Path) -> list[str]:
    """All images below `folder`, sorted; none, or any other file, is an error."""
    images: list[str] = []
    others: list[str] = []
    _walk(str(folder), images, others, above=())
    if others:
        raise ValueError(
            f"{decoded_array.show(others[0])}{_more(others, ' and {} more')}: not an image file, remove it; "
            f"images end in {', '.join(SUFFIXES)}"
        )
    if not images:
        raise ValueError(
            f"{decoded_array.show(folder)} holds no images, that is files in {', '.join(SUFFIXES)}"
        )
    return images


def _walk(folder: str, images: list[str], others: list[str], above: tuple[str, ...]) -> None:
    real = os.path.realpath(folder)
    if real in above:
        raise ValueError(f"{decoded_array.show(folder)} is a link to a folder that it lies in: remove it")
    for entry in _entries(folder):
        path = os.path.join(folder, entry.name)
        if entry.is_dir():
            _walk(path, images, others, (*above, real))
        # A link may lead nowhere, which opening it will tell; a pipe or a socket would never be read.
        elif entry.name.lower().endswith(SUFFIXES) and (entry.is_file() or entry.is_symlink()):
            images.append(path)
        else:
            others.append(path)


def _entries(folder: str | Path) -> list[os.DirEntry]:
    """What is in a folder, sorted by name, without hidden files and folders."""
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)


def _where(paths: list[str], flags: list[bool], value: bool) -> list[str]:
    return [path for path, flag in zip(paths, flags, strict=True) if flag is value]


def _flat(groups: list[list[str]], first: int) -> tuple[list[str], list[int]]:
    """The paths of all classes, and the number of the class of each."""
    numbered = [(path, label) for label, paths in enumerate(groups, first) for path in paths]
    return [path for path, _ in numbered], [label for _, label in numbered]


def _more(names: list, text: str) -> str:
    """`text` with the number of names after the first, if there are any."""
    return text.format(f"{len(names) - 1:,}") if len(names) > 1 else ""
