"""A data set that TensorFlow Datasets has prepared as ArrayRecord, read without TensorFlow."""

import difflib
import io
import os
import threading
from typing import Any

import numpy as np

from byov_jax.data import stack
from byov_jax.data.dataset import Dataset, Images

TESTS = ("test", "validation")
FOLDER = "TFDS_DATA_DIR"
"""The environment variable that says where data sets lie; ~/tensorflow_datasets if it is not set."""


def load(name: str, *, resize: int = 0) -> Dataset:
    """Reads the features `image` and `label` of the splits train and test, or train and validation.

    Args:
      name: as tfds has it, `NAME[/CONFIG][:VERSION]`: cifar10, cifar10:3.0.2, cifar10_corrupted/fog_1.
      resize: side of the central squares; 0 leaves images as they are.
    """
    import tensorflow_datasets as tfds  # here, since it takes long

    builder = _prepared(name)
    classes = _check_features(name, builder.info.features)
    splits = ["train", next((split for split in TESTS if split in builder.info.splits), TESTS[0])]
    missing = [split for split in splits if split not in builder.info.splits]
    if missing:
        raise ValueError(f"tfds:{name} has no split {missing[0]}, it has {', '.join(builder.info.splits)}")
    try:
        sources = builder.as_data_source(splits, decoders={"image": tfds.decode.SkipDecoding()})
    except NotImplementedError:
        raise ValueError(
            f"tfds:{name} lies in {builder.data_path} as {builder.info.file_format.value}, which needs "
            f"TensorFlow to be read: delete it, or set {FOLDER} to a new folder, and {_how_to_prepare(name)}"
        ) from None
    return _read(name, splits, sources, classes, resize)


def _prepared(name: str) -> Any:
    """The builder of a data set on disk; its code is not needed and nothing is downloaded."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import naming, read_only_builder

    try:
        base = naming.parse_builder_name_kwargs(name)[0].name
    except ValueError:
        raise ValueError(f"tfds:{name}: expected tfds:NAME, with /CONFIG and :VERSION if you like") from None
    folder = os.path.expanduser(os.environ.get(FOLDER) or tfds.core.constants.DATA_DIR)
    try:
        return read_only_builder.builder_from_files(name, data_dir=folder)
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
    except Exception as error:  # of damaged files: each of tfds's parsers has its own
        raise ValueError(
            f"tfds:{name} in {folder} cannot be read ({stack.reason(error)}): delete it and prepare it again"
        ) from None
    if base in known:
        raise ValueError(f"tfds:{name} is not prepared in {folder} ({FOLDER}): {_how_to_prepare(name)}")
    close = difflib.get_close_matches(base, known, n=1)
    hint = f"did you mean tfds:{close[0]}?" if close else "see https://www.tensorflow.org/datasets/catalog"
    raise ValueError(f"tfds:{name} is not prepared in {folder} ({FOLDER}) and not known to tfds: {hint}")


def _how_to_prepare(name: str) -> str:
    prepare = f"tfds.builder({name!r}, file_format='array_record').download_and_prepare()"
    return (
        f"run pip install 'byov-jax[tf]' and then python -c \"import tensorflow_datasets as tfds; {prepare}\""
    )


def _check_features(name: str, features: Any) -> tuple[str, ...]:
    """The names of the classes, if there are images and labels."""
    import tensorflow_datasets as tfds

    found = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    image, label = found.get("image"), found.get("label")
    kinds = ", ".join(f"{key} ({type(feature).__name__})" for key, feature in sorted(found.items()))
    if not isinstance(image, tfds.features.Image) or image.np_dtype != np.uint8:
        raise ValueError(f"tfds:{name} has no feature image of 8 bits: it has {kinds}")
    if not isinstance(label, tfds.features.ClassLabel):
        raise ValueError(f"tfds:{name} has no feature label with classes: it has {kinds}")
    return tuple(label.names)


def _read(name: str, splits: list[str], sources: list, classes: tuple[str, ...], resize: int) -> Dataset:
    sizes = [len(source) for source in sources]
    places = [(source, i) for source in sources for i in range(len(source))]
    names = [
        f"image {i} of tfds:{name}, {split}" for split, n in zip(splits, sizes, strict=True) for i in range(n)
    ]
    label = np.zeros(sum(sizes), np.int32)
    lock = threading.Lock()  # the reader of ArrayRecord does not promise to serve several threads

    def open_image(i: int) -> io.BytesIO:
        source, place = places[i]
        with lock:
            record = source[place]
        label[i] = record["label"]
        return io.BytesIO(record["image"])

    image = stack.read(names, open_image, resize=resize, remedy=f"prepare tfds:{name} again")
    if label.min() < 0:
        raise ValueError(f"tfds:{name}: {splits[int(label.argmin() >= sizes[0])]} has images without a label")
    train, test = (Images(image[rows], label[rows]) for rows in (slice(sizes[0]), slice(sizes[0], None)))
    return Dataset(train, test, classes, f"test images from the split {splits[1]} of tfds:{name}")
