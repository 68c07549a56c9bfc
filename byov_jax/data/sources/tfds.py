"""Data sets prepared by TensorFlow Datasets, as ArrayRecord or TFRecord, read without TensorFlow."""

import difflib
import os
from typing import Any

import numpy as np

from byov_jax.data.dataset import Record, SourceDataset
from byov_jax.data.sources import tfrecord
from byov_jax.errors import reason

TESTS = ("test", "validation")
FOLDER = "TFDS_DATA_DIR"
"""The environment variable with the folder of the data sets; ~/tensorflow_datasets if it is not set."""


def open_dataset(name: str) -> SourceDataset:
    """Open the splits train and test, or train and validation: features `image` and `label`.

    A test split with hidden labels, as in imagenet2012, is skipped if there is a validation split.

    Args:
      name: as in tfds, `NAME[/CONFIG][:VERSION]`: cifar10, cifar10:3.0.2, cifar10_corrupted/fog_1.
    """
    builder = _read_builder(name)
    features, known = builder.info.features, builder.info.splits
    classes = _class_names(name, features)
    splits = ["train", *([split for split in TESTS if split in known] or TESTS[:1])]
    missing = [split for split in splits if split not in known]
    if missing:
        raise ValueError(f"tfds:{name} has no split {missing[0]}, it has {', '.join(known)}")
    train, *tests = (
        TfdsSource(examples, features, f"tfds:{name}, {split}")
        for split, examples in zip(splits, _examples(name, builder, splits), strict=True)
    )
    test = tests[0] if len(tests) == 1 or tests[0][0].label >= 0 else tests[1]
    description = f"test images from the split {splits[1 + tests.index(test)]} of tfds:{name}"
    return SourceDataset(train, test, classes, description, remedy=f"prepare tfds:{name} again")


class TfdsSource:
    """Serialized examples with the features `image` and `label`."""

    def __init__(self, examples: Any, features: Any, name: str) -> None:
        import tensorflow_datasets as tfds  # slow to import

        self._examples, self._features, self._name = examples, features, name
        self._decoders = {"image": tfds.decode.SkipDecoding()}

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, i: int) -> Record:
        example = self._features.deserialize_example_np(self._examples[i], decoders=self._decoders)
        return Record(example["image"], int(example["label"]))

    def name(self, i: int) -> str:
        return f"image {i} of {self._name}"


def _read_builder(name: str) -> Any:
    """Return the builder of a prepared data set, from its files alone; nothing is downloaded."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import naming, read_only_builder

    try:
        base = naming.parse_builder_name_kwargs(name)[0].name
    except ValueError:
        raise ValueError(f"tfds:{name}: expected tfds:NAME[/CONFIG][:VERSION]") from None
    folder = os.path.expanduser(os.environ.get(FOLDER) or tfds.core.constants.DATA_DIR)
    try:
        return read_only_builder.builder_from_files(name, data_dir=folder)
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
    except Exception as error:  # each parser of tfds has its own exceptions for damage
        raise ValueError(
            f"tfds:{name} in {folder} cannot be read ({reason(error)}): delete it and prepare it again"
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


def _class_names(name: str, features: Any) -> tuple[str, ...]:
    """Return the class names; a data set without 8-bit images or class labels is a ValueError."""
    import tensorflow_datasets as tfds

    by_name = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    image, label = by_name.get("image"), by_name.get("label")
    kinds = ", ".join(f"{key} ({type(feature).__name__})" for key, feature in sorted(by_name.items()))
    if not isinstance(image, tfds.features.Image) or image.np_dtype != np.uint8:
        raise ValueError(f"tfds:{name} has no feature image of 8 bits: it has {kinds}")
    if not isinstance(label, tfds.features.ClassLabel):
        raise ValueError(f"tfds:{name} has no feature label with classes: it has {kinds}")
    return tuple(label.names)


def _examples(name: str, builder: Any, splits: list[str]) -> list[Any]:
    """Return random access to the serialized examples of each split."""
    try:
        return [split.data_source for split in builder.as_data_source(splits)]
    except NotImplementedError:  # a format without random access
        file_format = builder.info.file_format.value
    if file_format != "tfrecord":
        raise ValueError(
            f"tfds:{name} is stored in {builder.data_path} as {file_format}, which has no random access: "
            f"delete it, or set {FOLDER} to a new folder, and {_how_to_prepare(name)}"
        )
    infos = [builder.info.splits[split] for split in splits]
    try:
        return [
            tfrecord.find_records([str(path) for path in info.filepaths], info.shard_lengths)
            for info in infos
        ]
    except ValueError as error:
        raise ValueError(f"tfds:{name}: {error}: prepare it again") from None
