"""Convert a data set of image files into ArrayRecord shards, resumably."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from array_record.python.array_record_module import ArrayRecordWriter

from byov_jax.data.dataset import ArraySource, Source, SourceDataset, read_image
from byov_jax.data.sources import arrayrecord
from byov_jax.data.sources.arrayrecord import NamedImage, Shard
from byov_jax.errors import reason

SHARD_SIZE = 4096
"""Default number of images per shard; 4096 of ImageNet are half a gigabyte."""

_THREADS = 16  # more than cores: they wait for files
_AHEAD = 256  # images that are read before they are written


def convert(
    dataset: SourceDataset,
    out: Path,
    *,
    name: str,
    shard_size: int = SHARD_SIZE,
    progress: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Write a data set to the folder `out` and return its index, the content of dataset.json.

    After an interruption, the same call keeps the finished shards and continues.

    Args:
      dataset: the data set, whose images must be encoded.
      out: a folder that is empty, does not exist, or holds the unfinished result of the same call.
      name: name of the data set for the index.
      shard_size: number of images per shard.
      progress: called repeatedly with the number of images written so far.
    """
    if shard_size < 1:
        raise ValueError(f"shard_size={shard_size} must be at least 1")
    if isinstance(dataset.train, ArraySource):
        raise ValueError(f"the images of {name} are not in image files: there is nothing to prepare")
    sources = dict(zip(arrayrecord.SPLITS, (dataset.train, dataset.test), strict=True))
    header = {
        "version": arrayrecord.VERSION,
        "source": name,
        "description": dataset.description,
        "shard_size": shard_size,
        "images": {split: len(source) for split, source in sources.items()},
        "classes": list(dataset.classes),
    }
    if _is_finished(out, header):
        return arrayrecord.read_index(out)
    done, splits = 0, {}
    names: dict[str, list[str]] = {split: [] for split in sources}
    for split, source in sources.items():
        shards, label = [], []
        for file, rows in _layout(split, len(source), shard_size):
            sidecar = out / f"{file}.json"
            entry = _read_sidecar(out / file, sidecar)
            if entry is None:
                entry = _write_shard(source, rows, out / file, done, progress)
                _write_json(sidecar, entry)
            done += len(rows)
            progress(done)
            shards.append(entry["shard"])
            label += entry["label"]
            names[split] += entry["name"]
        splits[split] = {"shards": shards, "label": label}
    _write_json(out / arrayrecord.NAMES, names)
    _write_json(out / arrayrecord.INDEX, header | {"splits": splits})
    _remove_temporary(out)
    return arrayrecord.read_index(out)


def _is_finished(out: Path, header: dict[str, Any]) -> bool:
    """Return whether `out` is complete, and begin it if it is empty; other content is a ValueError."""
    out.mkdir(parents=True, exist_ok=True)
    unfinished, index = out / arrayrecord.UNFINISHED, out / arrayrecord.INDEX
    for file in (index, unfinished):
        if file.is_file():
            existing = json.loads(file.read_text())
            for key, value in header.items():
                if existing.get(key) != value:
                    raise ValueError(
                        f"{out} was started with a different {key}: delete it, or write to another folder"
                    )
            if file == index:
                _remove_temporary(out)
            return file == index
    if any(out.iterdir()):
        raise ValueError(f"{out} is not empty: delete it, or write to another folder")
    _write_json(unfinished, header)
    return False


def _layout(split: str, count: int, size: int) -> Iterator[tuple[str, range]]:
    """Yield the file name of each shard and the range of images it holds."""
    number = -(-count // size)
    for i in range(number):
        rows = range(i * size, min((i + 1) * size, count))
        yield f"{split}-{i:05}-of-{number:05}.array_record", rows


def _read_sidecar(file: Path, sidecar: Path) -> dict[str, Any] | None:
    """Return the entry of a complete shard; it is written after its shard."""
    if not sidecar.is_file() or not file.is_file():
        return None
    entry = json.loads(sidecar.read_text())
    return entry if file.stat().st_size == entry["shard"]["bytes"] else None


def _write_shard(
    source: Source, rows: range, file: Path, done: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Write a shard and return its entry: the `Shard`, labels and names."""
    partial = file.with_name(f"{file.name}.partial")
    label, names = [], []
    try:
        # Groups of one record allow random access; encoded images cannot be compressed further.
        writer = ArrayRecordWriter(str(partial), "group_size:1,uncompressed")
        with ThreadPoolExecutor(_THREADS) as pool:
            for start in range(0, len(rows), _AHEAD):
                for image in pool.map(lambda i: _read(source, i), rows[start : start + _AHEAD]):
                    writer.write(arrayrecord.pack(image))
                    label.append(image.label)
                    names.append(image.name)
                progress(done + len(label))
        writer.close()
    except RuntimeError as error:  # any disk error
        raise OSError(f"{partial} cannot be written: {reason(error)}") from None
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = stream.tell()
    partial.rename(file)
    shard = Shard(file.name, len(label), size, digest)
    return {"shard": shard._asdict(), "label": label, "name": names}


def _read(source: Source, i: int) -> NamedImage:
    image, label = read_image(source, i, bytes)
    return NamedImage(image, label, source.name(i))


def _write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically and durably."""
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("w") as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)


def _remove_temporary(out: Path) -> None:
    for file in (*out.glob("*.array_record.json"), *out.glob("*.partial"), out / arrayrecord.UNFINISHED):
        file.unlink(missing_ok=True)
