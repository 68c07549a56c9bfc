"""Data sets by name or place, read image by image (`open`) or into memory as a whole (`load`)."""

import io
import zipfile
import zlib
from pathlib import Path
from typing import Literal, overload

import numpy as np
from numpy.lib.npyio import NpzFile

from byov_jax.data.dataset import Dataset, Images, Unlabelled, UnlabelledImages
from byov_jax.data.loading import decoded_array
from byov_jax.data.records import Arrays, Records
from byov_jax.data.sources import arrayrecord, fashion_mnist, folder, idx, tars, tfds

EMBEDDED = "fashion_mnist"
TFDS = "tfds:"
ARRAYS = ("train_image", "train_label", "test_image", "test_label")
IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
LARGEST_LABEL = 10**6  # no data set has more classes: a larger label is damage, not a class


def open(source: str) -> Records:
    """Finds the images of a data set, to be read one by one; errors are those of `load`.

    Args:
      source: "fashion_mnist" for the embedded subset; "tfds:NAME" for a data set that tfds has prepared; a
        folder of images, `train/CLASS/*.jpg` or unlabelled (see `folder.find`); a folder that
        `byov_jax.cli.prepare` has written; one with the original tar files of ImageNet; one with the four IDX
        files of MNIST and its kin, gzipped or not; or an .npz file with `train_image`, `train_label`,
        `test_image`, `test_label` (uint8 [n, height, width, channels] and integers [n]) and, if you like,
        `classes` (their names).
    """
    path = Path(source)
    if source == EMBEDDED:
        return _in_memory(fashion_mnist.load(), source)
    if source.startswith(TFDS):
        return tfds.open(source.removeprefix(TFDS))
    if source and path.is_dir():
        if _has_idx(path):
            return _in_memory(_from_idx(path), source)
        kind = next((kind for kind in (arrayrecord, tars) if kind.found(path)), folder)
        return kind.open(path)
    if path.suffix == ".npz" and path.is_file():
        return _in_memory(_from_npz(path), source)
    raise ValueError(
        f"data {source!r} is neither {EMBEDDED!r}, nor {TFDS}NAME, nor a folder or an .npz file that exists"
    )


@overload
def load(source: Literal["fashion_mnist"], *, resize: int = 0) -> Dataset: ...
@overload
def load(source: str, *, resize: int = 0) -> Dataset | Unlabelled: ...
def load(source: str, *, resize: int = 0) -> Dataset | Unlabelled:
    """Reads a whole data set into memory; what cannot be read is a ValueError or an OSError of one line.

    Args:
      source: as in `open`.
      resize: side of the central squares that images are cropped and resized to; 0 leaves them as they are.
    """
    if resize < 0:
        raise ValueError(f"config.data.resize={resize} must be a size in pixels, or 0 for images as they are")
    found = open(source)
    if isinstance(found.train, Arrays) and isinstance(found.test, Arrays):
        train, test = (
            Images(decoded_array.resized(one.image, resize), one.label) for one in (found.train, found.test)
        )
    else:
        train, test = _decoded(found, resize)
    if not found.classes:
        return Unlabelled(UnlabelledImages(train.image), UnlabelledImages(test.image), (), found.description)
    for split, images in (("train", train), ("test", test)):
        if images.label.min() < 0:
            raise ValueError(f"{source}: {split} has images without a label")
    return Dataset(train, test, found.classes, found.description)


def _decoded(found: Records, resize: int) -> tuple[Images, Images]:
    """Both splits, decoded together: they have colours if one image has."""
    places = [(one, i) for one in (found.train, found.test) for i in range(len(one))]
    label = np.empty(len(places), np.int32)

    def open_image(number: int) -> io.BytesIO:
        one, i = places[number]
        record = one[i]
        label[number] = record.label
        return io.BytesIO(bytes(record.image))

    names = [one.name(i) for one, i in places]
    image = decoded_array.read(names, open_image, resize=resize, remedy=found.remedy)
    split = len(found.train)
    return Images(image[:split], label[:split]), Images(image[split:], label[split:])


def _in_memory(data: Dataset, place: str) -> Records:
    train, test = (Arrays(*images, place) for images in (data.train, data.test))
    return Records(train, test, data.classes, data.description)


def find_idx(place: Path, name: str) -> Path:
    """The IDX file of that name in the folder `place`, gzipped or not."""
    for path in (place / f"{name}.gz", place / name):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{place} has neither {name}.gz nor {name}")


def _has_idx(place: Path) -> bool:
    return any((place / f"{name}{suffix}").is_file() for name in IDX for suffix in ("", ".gz"))


def _from_idx(place: Path) -> Dataset:
    train_image, train_label, test_image, test_label = (idx.read(find_idx(place, name)) for name in IDX)
    train = _images(place, train_image[..., None], train_label)
    test = _images(place, test_image[..., None], test_label)
    return _dataset(place, train, test, classes=None)


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
