"""A data set that TensorFlow Datasets has prepared, as ArrayRecord or TFRecord, read without TensorFlow."""

import difflib
import os
from typing import Any

import numpy as np

from byov_jax.data.loading import decoded_array
from byov_jax.data.records import Record, Records
from byov_jax.data.sources import tfrecord

TESTS = ("test", "validation")
FOLDER = "TFDS_DATA_DIR"
"""The environment variable that says where data sets lie; ~/tensorflow_datasets if it is not set."""


def open(name: str) -> Records:
    """Finds the images of the splits train and test, or train and validation: features `image` and `label`.

    A test split whose labels are hidden, as in imagenet2012, is passed over if there is a validation split.

    Args:
      name: as tfds has it, `NAME[/CONFIG][:VERSION]`: cifar10, cifar10:3.0.2, cifar10_corrupted/fog_1.
    """
    builder = _prepared(name)
    features, known = builder.info.features, builder.info.splits
    classes = _check_features(name, features)
    splits = ["train", *([split for split in TESTS if split in known] or TESTS[:1])]
    missing = [split for split in splits if split not in known]
    if missing:
        raise ValueError(f"tfds:{name} has no split {missing[0]}, it has {', '.join(known)}")
    train, *tests = (
        Examples(examples, features, f"tfds:{name}, {split}")
        for split, examples in zip(splits, _examples(name, builder, splits), strict=True)
    )
    test = tests[0] if len(tests) == 1 or tests[0][0].label >= 0 else tests[1]
    description = f"test images from the split {splits[1 + tests.index(test)]} of tfds:{name}"
    return Records(train, test, classes, description, remedy=f"prepare tfds:{name} again")


class Examples:
    """Serialised examples with the features `image` and `label`."""

    def __init__(self, examples: Any, features: Any, place: str) -> None:
        import tensorflow_datasets as tfds  # here, since it takes long

        self._examples, self._features, self._place = examples, features, place
        self._decoders = {"image": tfds.decode.SkipDecoding()}

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, i: int) -> Record:
        example = self._features.deserialize_example_np(self._examples[i], decoders=self._decoders)
        return Record(example["image"], int(example["label"]))

    def name(self, i: int) -> str:
        """Its number in the split."""
        return f"image {i} of {self._place}"


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
            f"tfds:{name} in {folder} cannot be read ({decoded_array.reason(error)}): "
            "delete it and prepare it again"
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


def _examples(name: str, builder: Any, splits: list[str]) -> list[Any]:
    """The serialised examples of each split."""
    try:
        return [found.data_source for found in builder.as_data_source(splits)]
    except NotImplementedError:  # a format without random access
        kind = builder.info.file_format.value
    if kind != "tfrecord":
        raise ValueError(
            f"tfds:{name} lies in {builder.data_path} as {kind}, which cannot be read one by one: "
            f"delete it, or set {FOLDER} to a new folder, and {_how_to_prepare(name)}"
        )
    found = [builder.info.splits[split] for split in splits]
    try:
        return [tfrecord.index([str(path) for path in one.filepaths], one.shard_lengths) for one in found]
    except ValueError as error:
        raise ValueError(f"tfds:{name}: {error}: prepare it again") from None
