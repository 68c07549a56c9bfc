"""Any data set of image files -> ArrayRecord shards, resumable: see `shards` for what is written."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from array_record.python.array_record_module import ArrayRecordWriter

from byov_jax.data.loading import decoded_array
from byov_jax.data.records import Arrays, Records, Source, attempt
from byov_jax.data.sources import arrayrecord
from byov_jax.data.sources.arrayrecord import Named, Shard

SHARD_SIZE = 4096
"""Images in a shard: of ImageNet, half a gigabyte."""

_THREADS = 16  # that wait for files
_AHEAD = 256  # images that are read before they are written


def convert(
    records: Records,
    out: Path,
    *,
    place: str,
    shard_size: int = SHARD_SIZE,
    tell: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Writes a data set to the folder `out`, and returns what its dataset.json says.

    If it is called again after an interruption, it keeps the shards that are finished.

    Args:
      records: the data set, whose images must be encoded.
      out: a folder that is empty, does not exist, or has been begun by the same call.
      place: what the data set is called.
      shard_size: how many images a shard holds.
      tell: called now and then with the number of images that have been written.
    """
    if shard_size < 1:
        raise ValueError(f"a shard of {shard_size} images is impossible: it must have at least 1")
    if isinstance(records.train, Arrays):
        raise ValueError(f"the images of {place} are not in image files: there is nothing to prepare")
    sources = dict(zip(arrayrecord.SPLITS, (records.train, records.test), strict=True))
    plan = {
        "version": arrayrecord.VERSION,
        "source": place,
        "description": records.description,
        "shard_size": shard_size,
        "images": {split: len(source) for split, source in sources.items()},
        "classes": list(records.classes),
    }
    if not _begin(out, plan):
        return arrayrecord.read_about(out)
    done, splits = 0, {}
    names: dict[str, list[str]] = {split: [] for split in sources}
    for split, source in sources.items():
        written, label = [], []
        for file, rows in _layout(split, len(source), shard_size):
            note = out / f"{file}.json"
            about = _finished(out / file, note)
            if about is None:
                about = _write(source, rows, out / file, done, tell)
                _replace(note, about)
            done += len(rows)
            tell(done)
            written.append(about["shard"])
            label += about["label"]
            names[split] += about["name"]
        splits[split] = {"shards": written, "label": label}
    _replace(out / arrayrecord.NAMES, names)
    _replace(out / arrayrecord.ABOUT, plan | {"splits": splits})
    _tidy(out)
    return arrayrecord.read_about(out)


def _begin(out: Path, plan: dict[str, Any]) -> bool:
    """Whether there is anything left to do; what was begun otherwise is not touched."""
    out.mkdir(parents=True, exist_ok=True)
    begun, finished = out / arrayrecord.BEGUN, out / arrayrecord.ABOUT
    for file in (finished, begun):
        if file.is_file():
            before = json.loads(file.read_text())
            for key, value in plan.items():
                if before.get(key) != value:
                    raise ValueError(
                        f"{out} was begun with another {key}: delete it, or write to another folder"
                    )
            if file == finished:
                _tidy(out)
            return file == begun
    if any(out.iterdir()):
        raise ValueError(f"{out} is not empty: delete it, or write to another folder")
    _replace(begun, plan)
    return True


def _layout(split: str, count: int, size: int) -> Iterator[tuple[str, range]]:
    """The name of each shard, and which images it holds."""
    number = -(-count // size)
    for i in range(number):
        rows = range(i * size, min((i + 1) * size, count))
        yield f"{split}-{i:05}-of-{number:05}.array_record", rows


def _finished(file: Path, note: Path) -> dict[str, Any] | None:
    """What was noted of a shard, if it is all there. A note is written after its shard."""
    if not note.is_file() or not file.is_file():
        return None
    about = json.loads(note.read_text())
    return about if file.stat().st_size == about["shard"]["bytes"] else None


def _write(source: Source, rows: range, file: Path, done: int, tell: Callable[[int], None]) -> dict[str, Any]:
    """Writes a shard, and returns what is to be noted of it."""
    partial = file.with_name(f"{file.name}.partial")
    label, names = [], []
    try:
        # Groups of one record can be read alone; encoded images cannot be compressed further.
        writer = ArrayRecordWriter(str(partial), "group_size:1,uncompressed")
        with ThreadPoolExecutor(_THREADS) as pool:
            for start in range(0, len(rows), _AHEAD):
                for image in pool.map(lambda i: _named(source, i), rows[start : start + _AHEAD]):
                    writer.write(arrayrecord.pack(image))
                    label.append(image.label)
                    names.append(image.name)
                tell(done + len(label))
        writer.close()
    except RuntimeError as error:  # whatever the disk said
        raise OSError(f"{partial} cannot be written: {decoded_array.reason(error)}") from None
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = stream.tell()
    partial.rename(file)
    shard = Shard(file.name, len(label), size, digest)
    return {"shard": shard._asdict(), "label": label, "name": names}


def _named(source: Source, i: int) -> Named:
    image, label = attempt(source, i, bytes)
    return Named(image, label, source.name(i))


def _replace(file: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file that is there as a whole or not at all."""
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("w") as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)


def _tidy(out: Path) -> None:
    """Removes what only an unfinished data set needs."""
    for file in (*out.glob("*.array_record.json"), *out.glob("*.partial"), out / arrayrecord.BEGUN):
        file.unlink(missing_ok=True)
