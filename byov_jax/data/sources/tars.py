"""The original tar files of ImageNet (ILSVRC 2012), read without unpacking.

ILSVRC2012_img_train.tar holds one tar file per class, ILSVRC2012_img_val.tar the validation images, and
ILSVRC2012_devkit_t12.tar.gz their classes.
"""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from byov_jax.data.dataset import PackedStrings, Record, SourceDataset
from byov_jax.data.sources.byte_ranges import ByteRange, ByteRanges
from byov_jax.errors import printable, reason

TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
FILES = (TRAIN, VALIDATION, DEVKIT)
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
"""Members of the devkit: WordNet IDs by class number, and the class numbers of the validation images."""


def matches(folder: Path) -> bool:
    """Return whether the folder holds any of `FILES`."""
    return any((folder / name).is_file() for name in FILES)


def open_dataset(folder: Path) -> SourceDataset:
    """Index the images in the tar files; classes are sorted by WordNet ID, validation images by name."""
    for name in FILES:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}: it needs {', '.join(FILES)}")
    groups = {}
    for name, byte_range in _members(folder / TRAIN):
        if not name.endswith(".tar"):
            raise ValueError(f"{folder / TRAIN}: {printable(name)} is not the .tar file of a class")
        inner = _members(folder / TRAIN, byte_range)
        groups[name.removesuffix(".tar")] = [(f"{name}/{image}", location) for image, location in inner]
    classes = tuple(sorted(groups))
    members = [member for name in classes for member in groups[name]]
    label = np.repeat(np.arange(len(classes), dtype=np.int32), [len(groups[name]) for name in classes])
    images = sorted(_members(folder / VALIDATION))
    truth = _validation_labels(folder / DEVKIT, classes)
    for file, count in ((TRAIN, len(members)), (VALIDATION, len(images))):
        if not count:
            raise ValueError(f"{folder / file} holds no images")
    if len(truth) != len(images):
        raise ValueError(
            f"{folder}: {VALIDATION} has {len(images):,} images, {DEVKIT} the classes of {len(truth):,}"
        )
    train, test = TarSource(folder / TRAIN, members, label), TarSource(folder / VALIDATION, images, truth)
    description = f"{len(classes)} classes; test images from {VALIDATION}"
    return SourceDataset(train, test, classes, description, remedy="download the tar file again")


class TarSource:
    """The images in one tar file, named by their path in it."""

    def __init__(
        self, file: Path, members: list[tuple[str, ByteRange]], label: Int32[np.ndarray, "n"]
    ) -> None:
        self._file, self.label = str(file), label
        self._images = ByteRanges([self._file], (byte_range for _, byte_range in members))
        self._names = PackedStrings(name for name, _ in members)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> Record:
        return Record(self._images[i], int(self.label[i]))

    def name(self, i: int) -> str:
        return printable(f"{self._file}/{self._names[i]}")

    def file_names(self) -> list[bytes]:
        return self._names.base_names()


def _members(file: Path, inside: ByteRange | None = None) -> Iterator[tuple[str, ByteRange]]:
    """Yield the name and byte range of each member of a tar file, or of the tar file `inside` it."""
    start, end = (inside.offset, inside.offset + inside.size) if inside else (0, file.stat().st_size)
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                for member in tar:  # offsets count from the start of the outer file
                    if member.offset_data + member.size > end:
                        raise tarfile.ReadError(f"{member.name} is truncated")
                    if member.isfile():
                        yield member.name, ByteRange(0, member.offset_data, member.size)
    except tarfile.TarError as error:
        raise ValueError(f"{file} cannot be read as a tar file: {reason(error)}") from None


def _validation_labels(devkit: Path, classes: tuple[str, ...]) -> Int32[np.ndarray, "n"]:
    """Return the labels of the validation images, sorted by name."""
    from scipy.io import loadmat  # slow to import

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
    except Exception as error:  # each of the three formats has its own exceptions for damage
        raise ValueError(f"{devkit} cannot be read ({reason(error)}): download it again") from None
    labels = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in images if name not in labels]
    if unknown:
        raise ValueError(f"{devkit} has images of class {unknown[0]}, {TRAIN} has no such class")
    return np.array([labels[name] for name in images], np.int32)
