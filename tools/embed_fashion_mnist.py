"""Write the embedded subset of Fashion-MNIST from the four original IDX files.

Run it to change the subset, and set `fashion_mnist.SHA256` to the checksum that it prints:

    python -m tools.embed_fashion_mnist --idx=DIR --out=byov_jax/data/embedded/fashion_mnist.npy.xz
"""

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np

from byov_jax.data.dataset import Dataset, Images
from byov_jax.data.sources import fashion_mnist, idx
from byov_jax.data.sources.idx import find_file

PER_CLASS = {"train": 1000, "t10k": 200}


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        train, test = (first_of_each_class(arguments.idx, split, count) for split, count in PER_CLASS.items())
        data = fashion_mnist.encode(Dataset(train, test, fashion_mnist.CLASSES))
        arguments.out.write_bytes(data)
    except (OSError, ValueError) as error:
        print(f"embed: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out}: {len(train.label):,} training and {len(test.label):,} test images")
    print(f"{len(data):,} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}")
    return 0


def first_of_each_class(folder: Path, split: str, count: int) -> Images:
    """Return the first `count` images of each class of a split, in file order."""
    image = idx.read(find_file(folder, f"{split}-images-idx3-ubyte"))
    label = idx.read(find_file(folder, f"{split}-labels-idx1-ubyte"))
    if label.ndim != 1 or image.dtype != np.uint8 or image.shape != (len(label), 28, 28):
        raise ValueError(f"{split}: images {image.shape} and labels {label.shape} are not Fashion-MNIST")
    indices = [np.flatnonzero(label == c)[:count] for c in range(len(fashion_mnist.CLASSES))]
    for name, rows in zip(fashion_mnist.CLASSES, indices, strict=True):
        if len(rows) < count:
            raise ValueError(f"{split}: {len(rows)} images of class {name}, {count} are needed")
    keep = np.sort(np.concatenate(indices))
    return Images(image[keep, :, :, None], label[keep].astype(np.int32))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.embed_fashion_mnist",
        description="Write the embedded subset of Fashion-MNIST: the first "
        f"{PER_CLASS['train']} training and {PER_CLASS['t10k']} test images of each class, in file order. "
        "The same input gives the same bytes.",
    )
    parser.add_argument(
        "--idx",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with the four IDX files train-images-idx3-ubyte, train-labels-idx1-ubyte, "
        "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, gzipped (.gz) or not",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write, about 4 MB")
    return parser


if __name__ == "__main__":
    sys.exit(main())
