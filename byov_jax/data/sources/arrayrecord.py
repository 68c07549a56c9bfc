"""The format of a data set that was prepared for training: ArrayRecord shards, and dataset.json about them.

A record is an encoded image, its label and the name it had; dataset.json has the classes, the labels, and the
number of images and the SHA-256 of each shard. It is written last: without it a data set is not finished.
names.json has all names, for messages and to tell whether two data sets are the same.
"""

import json
import struct
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource

from byov_jax.data.loading import decoded_array
from byov_jax.data.records import Names, Record, Records

ABOUT = "dataset.json"
BEGUN = "unfinished.json"
"""What lies in place of dataset.json as long as shards are missing."""

NAMES = "names.json"
SPLITS = ("train", "test")
VERSION = 1
_HEAD = struct.Struct("<iI")  # label, length of the name


class Shard(NamedTuple):
    """A file with some images of a split."""

    file: str
    images: int
    bytes: int
    sha256: str


class Named(NamedTuple):
    """An image as it lies in a shard."""

    image: bytes
    label: int
    name: str


def pack(image: Named) -> bytes:
    """The bytes of a record."""
    name = image.name.encode("utf-8", "surrogateescape")
    return _HEAD.pack(image.label, len(name)) + name + image.image


def unpack(record: bytes) -> Named:
    """The inverse of `pack`."""
    label, length = _HEAD.unpack_from(record)
    name = record[_HEAD.size : _HEAD.size + length].decode("utf-8", "surrogateescape")
    return Named(record[_HEAD.size + length :], label, name)


def found(folder: Path) -> bool:
    """Whether a folder holds such a data set, finished or not."""
    return (folder / ABOUT).is_file() or (folder / BEGUN).is_file()


def open(folder: Path) -> Records:
    """The images of a finished data set."""
    about = read_about(folder)
    train, test = (Shards(folder, split, **about["splits"][split]) for split in SPLITS)
    description = f"{about['description']}; prepared"
    return Records(train, test, tuple(about["classes"]), description, remedy="prepare the data set again")


def read_about(folder: Path) -> dict[str, Any]:
    """What dataset.json says; one line if it is missing, damaged or of another version."""
    file = folder / ABOUT
    if not file.is_file():
        raise ValueError(f"{folder} is not finished: run the same byov_jax.cli.prepare command again")
    try:
        about = json.loads(file.read_text())
        version = about["version"]
        if version == VERSION:
            for split in SPLITS:
                part = about["splits"][split]
                part["shards"] = [Shard(**shard) for shard in part["shards"]]
                if len(part["label"]) != sum(shard.images for shard in part["shards"]):
                    raise ValueError(
                        f"its shards of {split} have another number of images than it has labels"
                    )
                if any(Path(shard.file).name != shard.file for shard in part["shards"]):
                    raise ValueError(f"a shard of {split} lies in another folder")
            return about
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is damaged ({decoded_array.reason(error)}): prepare the data set again"
        ) from None
    raise ValueError(f"{file} has version {version}, expected {VERSION}: prepare the data set again")


class Shards:
    """The images of one split."""

    def __init__(self, folder: Path, split: str, shards: list[Shard], label: list[int]) -> None:
        self.folder, self._split, self.shards = folder, split, shards
        self.label = np.array(label, np.int32)
        # With the range of records the files need not be opened to learn how many there are.
        files = [f"{folder / shard.file}[0:{shard.images}]" for shard in shards]
        self._records = ArrayRecordDataSource(files)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> Record:
        image = unpack(self._records[i])
        return Record(image.image, image.label)

    def name(self, i: int) -> str:
        """The path that it had before, and the shard that it lies in."""
        shard = self.shards[int(np.searchsorted(self._ends, i, side="right"))]
        return f"{self._names[i]} in {self.folder / shard.file}"

    def file_names(self) -> list[bytes]:
        """The names that the images had before, without their folders."""
        return self._read_names().without_folders()

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([shard.images for shard in self.shards])

    @cached_property
    def _names(self) -> Names:
        return self._read_names()

    def _read_names(self) -> Names:
        """Not kept where no message needs them: worker processes would be sent a copy."""
        file = self.folder / NAMES
        try:
            names = json.loads(file.read_text())[self._split]
            if len(names) != len(self):
                raise ValueError(f"it has {len(names):,} names of {self._split} for {len(self):,} images")
            return Names(names)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} cannot be read ({decoded_array.reason(error)}): prepare the data set again"
            ) from None
