"""The format of prepared data sets: ArrayRecord shards and their index, dataset.json.

A record is an encoded image, its label and its original name. dataset.json holds the classes, the labels, and
the number of images and SHA-256 of each shard; it is written last, so a folder without it is unfinished.
names.json holds all names, for messages and for the digest of the data.
"""

import json
import struct
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource

from byov_jax.data.dataset import PackedStrings, Record, SourceDataset
from byov_jax.errors import reason

INDEX = "dataset.json"
UNFINISHED = "unfinished.json"
"""Stands in for dataset.json while shards are missing."""

NAMES = "names.json"
SPLITS = ("train", "test")
VERSION = 1
_HEADER = struct.Struct("<iI")  # label, length of the name


class Shard(NamedTuple):
    """A file with some of the images of a split."""

    file: str
    images: int
    bytes: int
    sha256: str


class NamedImage(NamedTuple):
    """The content of one record."""

    image: bytes
    label: int
    name: str


def pack(image: NamedImage) -> bytes:
    """Serialize a record."""
    name = image.name.encode("utf-8", "surrogateescape")
    return _HEADER.pack(image.label, len(name)) + name + image.image


def unpack(record: bytes) -> NamedImage:
    """Invert `pack`."""
    label, length = _HEADER.unpack_from(record)
    name = record[_HEADER.size : _HEADER.size + length].decode("utf-8", "surrogateescape")
    return NamedImage(record[_HEADER.size + length :], label, name)


def matches(folder: Path) -> bool:
    """Return whether the folder holds a prepared data set, finished or not."""
    return (folder / INDEX).is_file() or (folder / UNFINISHED).is_file()


def open_dataset(folder: Path) -> SourceDataset:
    """Open a finished data set."""
    index = read_index(folder)
    train, test = (ShardSource(folder, split, **index["splits"][split]) for split in SPLITS)
    description = f"{index['description']}; prepared"
    remedy = "prepare the data set again"
    return SourceDataset(train, test, tuple(index["classes"]), description, remedy)


def read_index(folder: Path) -> dict[str, Any]:
    """Read dataset.json; a missing, damaged or incompatible file is a ValueError of one line."""
    file = folder / INDEX
    if not file.is_file():
        raise ValueError(f"{folder} is not finished: run the same `byov prepare` command again")
    try:
        index = json.loads(file.read_text())
        version = index["version"]
        if version == VERSION:
            for split in SPLITS:
                _parse_shards(split, index["splits"][split])
            return index
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({reason(error)}): prepare the data set again") from None
    raise ValueError(f"{file} has version {version}, expected {VERSION}: prepare the data set again")


def _parse_shards(name: str, split: dict[str, Any]) -> None:
    split["shards"] = [Shard(**shard) for shard in split["shards"]]
    count = sum(shard.images for shard in split["shards"])
    if len(split["label"]) != count:
        raise ValueError(f"{name} has {len(split['label']):,} labels for {count:,} images")
    if any(Path(shard.file).name != shard.file for shard in split["shards"]):
        raise ValueError(f"a shard of {name} is in another folder")


class ShardSource:
    """The images of one split."""

    def __init__(self, folder: Path, split: str, shards: list[Shard], label: list[int]) -> None:
        self.folder, self._split, self.shards = folder, split, shards
        self.label = np.array(label, np.int32)
        # With explicit ranges, files are not opened just to count their records.
        files = [f"{folder / shard.file}[0:{shard.images}]" for shard in shards]
        self._records = ArrayRecordDataSource(files)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> Record:
        image = unpack(self._records[i])
        return Record(image.image, image.label)

    def name(self, i: int) -> str:
        """Return the original name and the path of the shard."""
        shard = self.shards[int(np.searchsorted(self._ends, i, side="right"))]
        return f"{self._names[i]} in {self.folder / shard.file}"

    def file_names(self) -> list[bytes]:
        return self._read_names().base_names()  # not cached: worker processes would receive a copy

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([shard.images for shard in self.shards])

    @cached_property
    def _names(self) -> PackedStrings:
        return self._read_names()

    def _read_names(self) -> PackedStrings:
        file = self.folder / NAMES
        try:
            names = json.loads(file.read_text())[self._split]
            if len(names) != len(self):
                raise ValueError(f"it has {len(names):,} names of {self._split} for {len(self):,} images")
            return PackedStrings(names)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} cannot be read ({reason(error)}): prepare the data set again") from None
