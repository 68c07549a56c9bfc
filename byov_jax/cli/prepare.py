"""Prepare a data set for fast training, or check one.

    byov prepare --source=PHOTOS --out=DIR
    byov prepare --check=DIR

The first command packs a folder of images, a folder with the original tar files of ImageNet, or tfds:NAME
into some large files (ArrayRecord), which disks and networks read far faster than a million small ones.
Images stay as they are, byte for byte. DIR then serves as --config.data.source. After an interruption the
same command goes on; DIR is usable as soon as it holds dataset.json, which is written last.

The second reads a data set of any kind (a prepared one, a folder, tar files, tfds:NAME ...) from beginning to
end: it counts images and labels, compares checksums, decodes every image, and names what is wrong.

Exit codes: 0 done and nothing is wrong, 1 the check found something, 2 wrong input, 130 interrupted.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tqdm import tqdm

from byov_jax.cli import command
from byov_jax.data import convert, registry, verify
from byov_jax.data.dataset import SourceDataset
from byov_jax.errors import RunError

SHOWN = 20
"""Of many classes or problems so many are listed."""

_PAUSE = 10.0  # seconds between lines where there is no terminal


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments(argv)

    def work() -> int:
        try:
            if arguments.check:
                return check(arguments.check)
            prepare(arguments.source, arguments.out, arguments.shard_size)
            return 0
        except ValueError as error:
            raise RunError(str(error)) from None

    return command.run("prepare", work, "interrupted; the same command goes on with what is missing")


def prepare(place: str, out: Path, shard_size: int) -> None:
    """Writes the shards, and says how many."""
    records = registry.open_dataset(place)
    with _progress("prepare", len(records.train) + len(records.test)) as tell:
        about = convert.convert(records, out, name=place, shard_size=shard_size, progress=tell)
    files = sum(len(split["shards"]) for split in about["splits"].values())
    images = " and ".join(f"{count:,} {split}" for split, count in about["images"].items())
    print(f"{out}: {images} images in {files:,} files; byov prepare --check={out}")


def check(place: str) -> int:
    """Reads the whole data set, prints what it holds and what is wrong; 1 if anything is."""
    records = registry.open_dataset(place)
    print(f"{place}: {records.description}")
    problems = _damaged_files(records)
    for split, images in (("train", records.train), ("test", records.test)):
        label = []
        with _progress(split, len(images)) as tell:
            for part in verify.check_images(images, len(records.classes)):
                label.append(part.label)
                problems += part.problems
                tell(sum(map(len, label)))
        print(f"{split}: {len(images):,} images{_classes(np.concatenate(label), records.classes)}")
    for problem in problems[:SHOWN]:
        print(problem, file=sys.stderr)
    if len(problems) > SHOWN:
        print(f"... and {len(problems) - SHOWN:,} more", file=sys.stderr)
    print(f"{len(problems):,} problems" if problems else "nothing is wrong")
    return command.EXIT_FAILED if problems else 0


def _damaged_files(records: SourceDataset) -> list[str]:
    found = [
        problem for images in (records.train, records.test) for problem in verify.check_checksums(images)
    ]
    problems = [problem for problem in found if problem is not None]
    if found:
        print(f"checksums: {len(found) - len(problems):,} of {len(found):,} files are as they were written")
    return problems


def _classes(label: np.ndarray, classes: tuple[str, ...]) -> str:
    """How many images the classes have: each of a few, the extremes of many."""
    if not classes:
        return ", no labels"
    counts = verify.class_counts(label, len(classes))
    order = np.argsort(counts, kind="stable")
    texts = [f"{name} ({count:,})" for name, count in zip(classes, counts, strict=True)]
    if len(classes) > SHOWN:
        return f" of {len(classes):,} classes, from {texts[order[0]]} to {texts[order[-1]]}"
    return f" of {len(classes):,} classes: {', '.join(texts)}"


@contextmanager
def _progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to tell how many images are done: a bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=" images", dynamic_ncols=True) as bar:

            def move(done: int) -> None:
                bar.update(done - bar.n)

            yield move
        return
    spoken = time.monotonic()

    def tell(done: int) -> None:
        nonlocal spoken
        if time.monotonic() - spoken > _PAUSE:
            spoken = time.monotonic()
            print(f"{label}: {done:,} of {total:,} images", flush=True)

    yield tell


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = command.parser("prepare", __doc__)
    add = parser.add_argument
    add("--source", metavar="FOLDER", help="what to prepare: images, the tar files of ImageNet, tfds:NAME")
    add("--out", type=Path, metavar="DIR", help="the folder to write, new or of the same command")
    add(
        "--shard_size",
        type=int,
        default=convert.SHARD_SIZE,
        metavar="N",
        help="images in a file (%(default)s)",
    )
    add("--check", metavar="SOURCE", help="the data set to check, instead of preparing one")
    arguments = parser.parse_args(argv)
    if (arguments.check is None) == (arguments.source is None):
        parser.error("give either --source=FOLDER and --out=DIR, or --check=SOURCE")
    if (arguments.out is None) != (arguments.source is None):
        parser.error("--source=FOLDER and --out=DIR belong together")
    if arguments.shard_size < 1:
        parser.error(f"--shard_size={arguments.shard_size} must be at least 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
