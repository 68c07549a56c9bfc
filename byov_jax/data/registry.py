"""Open or load a data set by name or path: read image by image, or as arrays."""

import io
from pathlib import Path

import numpy as np

from byov_jax.data.dataset import (
    ArraySource,
    Dataset,
    Images,
    SourceDataset,
    Unlabelled,
    UnlabelledImages,
)
from byov_jax.data.loading import decoded_array, lazy
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.data.sources import arrayrecord, fashion_mnist, folder, idx, npz, tars, tfds

EMBEDDED = "fashion_mnist"
TFDS = "tfds:"


def open_dataset(source: str) -> SourceDataset:
    """Open a data set for reading image by image; a bad source is a ValueError or OSError of one line.

    Args:
      source: "fashion_mnist" for the embedded subset; "tfds:NAME" for a data set prepared by tfds; a folder
        of images, `train/CLASS/*.jpg`, `CLASS/*.jpg` or unlabelled (see `folder.find_files`); a folder
        written by `byov prepare`, with the original tar files of ImageNet, or with IDX files (see
        `idx.load`); or an .npz file (see `npz.load`).
    """
    path = Path(source)
    if source == EMBEDDED:
        return _from_arrays(fashion_mnist.load(), source)
    if source.startswith(TFDS):
        return tfds.open_dataset(source.removeprefix(TFDS))
    if source and path.is_dir():
        if idx.matches(path):
            return _from_arrays(idx.load(path), source)
        kind = next((kind for kind in (arrayrecord, tars) if kind.matches(path)), folder)
        return kind.open_dataset(path)
    if path.suffix == ".npz" and path.is_file():
        return _from_arrays(npz.load(path), source)
    raise ValueError(
        f"data {source!r} is neither {EMBEDDED!r}, nor {TFDS}NAME, nor an existing folder or .npz file"
    )


def load_dataset(
    source: str, *, loader: str = "memory", resize: int = 0, size: int = 0, on_error: str = "replace"
) -> Dataset | Unlabelled:
    """Return a data set whose images are arrays, or behave like arrays; errors are those of `open_dataset`.

    Args:
      source: as in `open_dataset`.
      loader: "memory" decodes all images now, "stream" on demand.
      resize: memory only: side of the central squares to crop and resize to; 0 keeps images unchanged.
      size: stream only: side of the central crops that evaluation sees.
      on_error: stream only: "replace" an unreadable image by gray, or "raise" an `ImageError`.
    """
    if resize < 0:
        raise ValueError(
            f"config.data.resize={resize} must be a size in pixels, or 0 to keep images unchanged"
        )
    opened = open_dataset(source)
    train, test = _in_memory(opened, resize) if loader == "memory" else _on_demand(opened, size, on_error)
    if not opened.classes:
        return Unlabelled(UnlabelledImages(train.image), UnlabelledImages(test.image), (), opened.description)
    for split, images in (("train", train), ("test", test)):
        if isinstance(images.label, np.ndarray) and images.label.min() < 0:
            raise ValueError(f"{source}: {split} has images without a label")
    return Dataset(train, test, opened.classes, opened.description)


def _from_arrays(data: Dataset, name: str) -> SourceDataset:
    train, test = (ArraySource(*images, name) for images in (data.train, data.test))
    return SourceDataset(train, test, data.classes, data.description)


def _on_demand(opened: SourceDataset, size: int, on_error: str) -> tuple[Images, Images]:
    train, test = (
        Images(LazyImages(source, size, on_error), lazy.labels(source))
        for source in (opened.train, opened.test)
    )
    return train, test


def _in_memory(opened: SourceDataset, resize: int) -> tuple[Images, Images]:
    """Both splits as arrays, decoded together: a single colour image makes all of them RGB."""
    train, test = opened.train, opened.test
    if isinstance(train, ArraySource) and isinstance(test, ArraySource):
        return (
            Images(decoded_array.resize_all(train.image, resize), train.label),
            Images(decoded_array.resize_all(test.image, resize), test.label),
        )
    items = [(source, i) for source in (train, test) for i in range(len(source))]
    label = np.empty(len(items), np.int32)

    def open_image(number: int) -> io.BytesIO:
        source, i = items[number]
        record = source[i]
        label[number] = record.label
        return io.BytesIO(bytes(record.image))

    names = [source.name(i) for source, i in items]
    image = decoded_array.decode_all(names, open_image, resize=resize, remedy=opened.remedy)
    split = len(train)
    return Images(image[:split], label[:split]), Images(image[split:], label[split:])
