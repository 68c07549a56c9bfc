"""The original files of ImageNet (ILSVRC 2012), read as they are: nothing is unpacked.

ILSVRC2012_img_train.tar holds a tar file for every class, ILSVRC2012_img_val.tar the validation images, and
ILSVRC2012_devkit_t12.tar.gz their classes.
"""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from byov_jax.data.loading import decoded_array
from byov_jax.data.records import Names, Record, Records
from byov_jax.data.sources.byte_ranges import Piece, Pieces

TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
FILES = (TRAIN, VALIDATION, DEVKIT)
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
"""What is read of the devkit: the classes of its numbers, and the numbers of the validation images."""


def found(folder: Path) -> bool:
    """Whether a folder holds any of the files."""
    return any((folder / name).is_file() for name in FILES)


def open(folder: Path) -> Records:
    """Finds every image in the tar files; classes are sorted by WordNet ID, validation images by name."""
    for name in FILES:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}: it needs {', '.join(FILES)}")
    groups = {}
    for name, piece in _members(folder / TRAIN):
        if not name.endswith(".tar"):
            raise ValueError(f"{folder / TRAIN}: {decoded_array.show(name)} is not the .tar file of a class")
        inner = _members(folder / TRAIN, piece)
        groups[name.removesuffix(".tar")] = [(f"{name}/{image}", place) for image, place in inner]
    classes = tuple(sorted(groups))
    members = [member for name in classes for member in groups[name]]
    label = np.repeat(np.arange(len(classes), dtype=np.int32), [len(groups[name]) for name in classes])
    images = sorted(_members(folder / VALIDATION))
    truth = _truth(folder / DEVKIT, classes)
    for file, count in ((TRAIN, len(members)), (VALIDATION, len(images))):
        if not count:
            raise ValueError(f"{folder / file} holds no images")
    if len(truth) != len(images):
        raise ValueError(
            f"{folder}: {VALIDATION} has {len(images):,} images, {DEVKIT} the classes of {len(truth):,}"
        )
    train, test = Tar(folder / TRAIN, members, label), Tar(folder / VALIDATION, images, truth)
    description = f"{len(classes)} classes; test images from {VALIDATION}"
    return Records(train, test, classes, description, remedy="fetch the tar file again")


class Tar:
    """Images in one tar file, named by the file and their names in it."""

    def __init__(self, file: Path, members: list[tuple[str, Piece]], label: Int32[np.ndarray, "n"]) -> None:
        self._file, self.label = str(file), label
        self._pieces = Pieces([self._file], (piece for _, piece in members))
        self._names = Names(name for name, _ in members)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> Record:
        return Record(self._pieces[i], int(self.label[i]))

    def name(self, i: int) -> str:
        """The path of the tar file, and the path in it."""
        return decoded_array.show(f"{self._file}/{self._names[i]}")

    def file_names(self) -> list[bytes]:
        """The names of the images without their folders."""
        return self._names.without_folders()


def _members(file: Path, inside: Piece | None = None) -> Iterator[tuple[str, Piece]]:
    """The files in a tar file, or in one that is `inside` it: their names and where they lie in `file`."""
    start, end = (inside.offset, inside.offset + inside.size) if inside else (0, file.stat().st_size)
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                for member in tar:  # its offsets count from the start of the file, not of the inner tar
                    if member.offset_data + member.size > end:
                        raise tarfile.ReadError(f"{member.name} is cut off")
                    if member.isfile():
                        yield member.name, Piece(0, member.offset_data, member.size)
    except tarfile.TarError as error:
        raise ValueError(f"{file} cannot be read as a tar file: {decoded_array.reason(error)}") from None


def _truth(devkit: Path, classes: tuple[str, ...]) -> Int32[np.ndarray, "n"]:
    """The classes of the validation images, sorted by name."""
    from scipy.io import loadmat  # here, since it takes long

    content: dict[str, bytes] = {}
    try:
        with tarfile.open(devkit) as tar:
            for member in tar:
                for name in (META, TRUTH):
                    if member.isfile() and member.name.endswith(name):
                        content[name] = tar.extractfile(member).read()  # type: ignore[union-attr]
        synsets = loadmat(io.BytesIO(content[META]), squeeze_me=True)["synsets"]
        names = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
        images = [names[int(number)] for number in content[TRUTH].split()]
    except Exception as error:  # of damaged files: each of its three formats has its own
        raise ValueError(f"{devkit} cannot be read ({decoded_array.reason(error)}): fetch it again") from None
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in images if name not in numbers]
    if unknown:
        raise ValueError(f"{devkit} has images of class {unknown[0]}, {TRAIN} has no such class")
    return np.array([numbers[name] for name in images], np.int32)
