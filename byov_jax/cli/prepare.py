"""Prepare a data set for fast training, or check one.

    byov prepare --source=PHOTOS --out=DIR
    byov prepare --check=DIR

The first command packs a folder of images, a folder with the original tar files of ImageNet, or tfds:NAME
into ArrayRecord shards, which disks and networks read far faster than a million small files. Images are
copied byte for byte. DIR is then a value of --config.data.source. After an interruption the same command
resumes; dataset.json, which makes DIR usable, is written last.

The second command reads a whole data set of any kind (a prepared one, a folder, tar files, tfds:NAME ...): it
counts images and labels, verifies checksums, decodes every image, and lists all problems.

Exit codes: 0 done and no problems found, 1 the check found problems, 2 wrong input, 130 interrupted.
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
"""Most classes or problems that are listed."""

_PAUSE = 10.0  # seconds between two lines without a terminal


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _arguments(argv)

    def work() -> int:
        try:
            if arguments.check:
                return check(arguments.check)
            prepare(arguments.source, arguments.out, arguments.shard_size)
            return 0
        except ValueError as error:
            raise RunError(str(error)) from None

    return command.run("prepare", work, "interrupted; the same command resumes")


def prepare(source: str, out: Path, shard_size: int) -> None:
    """Write the shards and print their number."""
    data = registry.open_dataset(source)
    with _progress("prepare", len(data.train) + len(data.test)) as report:
        about = convert.convert(data, out, name=source, shard_size=shard_size, progress=report)
    files = sum(len(split["shards"]) for split in about["splits"].values())
    images = " and ".join(f"{count:,} {split}" for split, count in about["images"].items())
    print(f"{out}: {images} images in {files:,} files; byov prepare --check={out}")


def check(source: str) -> int:
    """Read a whole data set, print its contents and problems, and return the exit code."""
    data = registry.open_dataset(source)
    print(f"{source}: {data.description}")
    problems = _damaged_files(data)
    for split, images in (("train", data.train), ("test", data.test)):
        label = []
        with _progress(split, len(images)) as report:
            for part in verify.check_images(images, len(data.classes)):
                label.append(part.label)
                problems += part.problems
                report(sum(map(len, label)))
        print(f"{split}: {len(images):,} images{_classes(np.concatenate(label), data.classes)}")
    for problem in problems[:SHOWN]:
        print(problem, file=sys.stderr)
    if len(problems) > SHOWN:
        print(f"... and {len(problems) - SHOWN:,} more", file=sys.stderr)
    print(f"{len(problems):,} problems" if problems else "no problems found")
    return command.EXIT_FAILED if problems else 0


def _damaged_files(data: SourceDataset) -> list[str]:
    checked = [problem for images in (data.train, data.test) for problem in verify.check_checksums(images)]
    problems = [problem for problem in checked if problem is not None]
    if checked:
        print(f"checksums: {len(checked) - len(problems):,} of {len(checked):,} files are unchanged")
    return problems


def _classes(label: np.ndarray, classes: tuple[str, ...]) -> str:
    """Format the number of images of each class, or of the smallest and the largest of many classes."""
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
    """Yield a function that shows the number of finished images, in a bar on a terminal, else in lines."""
    if sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=" images", dynamic_ncols=True) as bar:

            def move(done: int) -> None:
                bar.update(done - bar.n)

            yield move
        return
    printed = time.monotonic()

    def report(done: int) -> None:
        nonlocal printed
        if time.monotonic() - printed > _PAUSE:
            printed = time.monotonic()
            print(f"{label}: {done:,} of {total:,} images", flush=True)

    yield report


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = command.parser("prepare", __doc__)
    add = parser.add_argument
    add("--source", metavar="FOLDER", help="a folder of images, the tar files of ImageNet, or tfds:NAME")
    add("--out", type=Path, metavar="DIR", help="the folder to write, new or of the same command")
    add(
        "--shard_size",
        type=int,
        default=convert.SHARD_SIZE,
        metavar="N",
        help="images per file (%(default)s)",
    )
    add("--check", metavar="SOURCE", help="check this data set instead")
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
