"""Data sets by name or place: the embedded images, a folder of IDX files, an .npz file."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from byov_jax.data import fashion_mnist, idx
from byov_jax.data.dataset import Dataset, Images

EMBEDDED = "fashion_mnist"
ARRAYS = ("train_image", "train_label", "test_image", "test_label")
LARGEST_LABEL = 10**6  # no data set has more classes: a larger label is damage, not a class


def load(source: str) -> Dataset:
    """Reads a whole data set into memory.

    Args:
      source: "fashion_mnist" for the embedded subset; a folder with the four IDX files of MNIST and its
        kin, gzipped or not; or an .npz file with `train_image`, `train_label`, `test_image`, `test_label`
        (uint8 [n, height, width, channels] and integers [n]) and, if you like, `classes` (their names).
    """
    path = Path(source)
    if source == EMBEDDED:
        return fashion_mnist.load()
    if path.is_dir():
        return _from_idx(path)
    if path.suffix == ".npz" and path.is_file():
        return _from_npz(path)
    raise ValueError(
        f"data {source!r} is neither {EMBEDDED!r}, nor a folder with IDX files, nor an .npz file that exists"
    )


def find_idx(folder: Path, name: str) -> Path:
    """The IDX file of that name in `folder`, gzipped or not."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder} has neither {name}.gz nor {name}")


def _from_idx(folder: Path) -> Dataset:
    splits = []
    for split in ("train", "t10k"):
        image = idx.read(find_idx(folder, f"{split}-images-idx3-ubyte"))
        label = idx.read(find_idx(folder, f"{split}-labels-idx1-ubyte"))
        splits.append(_images(folder, image[..., None], label))
    return _dataset(folder, splits[0], splits[1], classes=None)


def _from_npz(file: Path) -> Dataset:
    try:
        # Not np.load: it calls whatever it does not know pickled.
        with file.open("rb") as stream, NpzFile(stream, allow_pickle=False) as arrays:
            found = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} cannot be read as .npz: {error}") from None
    missing = [name for name in ARRAYS if name not in found]
    if missing:
        raise ValueError(f"{file} lacks {', '.join(missing)}; it has {', '.join(found) or 'nothing'}")
    train = _images(file, found["train_image"], found["train_label"])
    test = _images(file, found["test_image"], found["test_label"])
    return _dataset(file, train, test, found.get("classes"))


def _images(place: Path, image: np.ndarray, label: np.ndarray) -> Images:
    if image.dtype != np.uint8 or image.ndim != 4 or image.shape[-1] not in (1, 3) or not image.size:
        raise ValueError(
            f"{place}: images are {image.dtype} {image.shape}; expected uint8 [n, height, width, 1 or 3] "
            "with at least one pixel"
        )
    if label.shape != (len(image),) or not np.issubdtype(label.dtype, np.integer):
        raise ValueError(f"{place}: labels are {label.dtype} {label.shape}; expected {len(image)} integers")
    if label.min() < 0 or label.max() > LARGEST_LABEL:
        raise ValueError(f"{place}: labels are {label.min()} to {label.max()}; expected classes from 0")
    return Images(image, label.astype(np.int32))


def _dataset(place: Path, train: Images, test: Images, classes: np.ndarray | None) -> Dataset:
    if train.image.shape[1:] != test.image.shape[1:]:
        raise ValueError(
            f"{place}: training images are {train.image.shape[1:]}, test images {test.image.shape[1:]}"
        )
    largest = max(train.label.max(), test.label.max())
    names = np.arange(largest + 1) if classes is None else classes
    if names.ndim != 1 or largest >= len(names):
        raise ValueError(
            f"{place}: labels go up to {largest}, which needs {largest + 1} classes; they are {names.shape}"
        )
    return Dataset(train, test, tuple(str(name) for name in names))
