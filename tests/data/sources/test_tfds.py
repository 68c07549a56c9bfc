"""Data sets of tfds: what was prepared is read without TensorFlow; what was not, says how to."""

import io
import itertools
import json
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from array_record.python import array_record_module
from PIL import Image

from byov_jax.data import convert, registry
from byov_jax.data.loading import decoded_array, lazy

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (20, 6, 4, 3), np.uint8)
TEST = RNG.integers(0, 256, (7, 6, 4, 3), np.uint8)
CLASSES = ("cat", "dog", "eel")


def encoded(array: np.ndarray) -> io.BytesIO:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    stream.seek(0)
    return stream


def prepare(
    folder, name="tiny_images", features=None, splits=("train", "test"), label=lambda i: i % 3, hidden=()
):
    """Writes a data set as its users do: a builder that hands over encoded images needs no TensorFlow."""
    import tensorflow_datasets as tfds

    def info(self):
        found = features or {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=CLASSES),
            "name": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(found))

    def generate(self, images, split):
        for i, image in enumerate(images):
            values = {"image": encoded(image), "label": -1 if split in hidden else label(i), "name": str(i)}
            yield i, {key: values[key] for key in self.info.features}

    def split(self, manager):
        images = (TRAIN, *[TEST] * (len(splits) - 1))
        return {key: generate(self, some, key) for key, some in zip(splits, images, strict=True)}

    members = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": info,
        "_split_generators": split,
        "_generate_examples": generate,
        "__module__": __name__,
    }
    builder = type(name, (tfds.core.GeneratorBasedBuilder,), members, skip_registration=True)
    builder(data_dir=folder, file_format="array_record").download_and_prepare()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    prepare(folder)
    return folder


@pytest.fixture
def at(monkeypatch):
    return lambda folder: monkeypatch.setenv("TFDS_DATA_DIR", str(folder))


def refusal(name) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        registry.load_dataset(name)
    return str(error.value)


def by_content(image, label):
    """Tfds shuffles when it prepares."""
    return sorted((one.tobytes(), int(number)) for one, number in zip(image, label, strict=True))


@pytest.mark.parametrize("name", ["tiny_images", "tiny_images:1.0.0", "tiny_images:1.*.*"])
def test_a_prepared_data_set(prepared, at, name):
    at(prepared)
    found = registry.load_dataset(f"tfds:{name}")
    assert found.classes == CLASSES
    assert by_content(*found.train) == by_content(TRAIN, np.arange(20) % 3)
    assert by_content(*found.test) == by_content(TEST, np.arange(7) % 3)
    assert found.train.label.dtype == np.int32
    assert found.description == f"test images from the split test of tfds:{name}"


def test_images_are_resized(prepared, at):
    at(prepared)
    plain, small = (registry.load_dataset("tfds:tiny_images", resize=resize) for resize in (0, 3))
    np.testing.assert_array_equal(small.train.image, decoded_array.resize_all(plain.train.image, 3))
    np.testing.assert_array_equal(small.train.label, plain.train.label)


def test_validation_serves_as_test(tmp_path, at):
    at(tmp_path)
    prepare(tmp_path, splits=("train", "validation"))
    assert by_content(*registry.load_dataset("tfds:tiny_images").test) == by_content(TEST, np.arange(7) % 3)


def test_a_test_split_with_hidden_labels_is_passed_over(tmp_path, at):
    """As in imagenet2012."""
    at(tmp_path)
    prepare(tmp_path, "hides", splits=("train", "validation", "test"), hidden=("test",))
    prepare(tmp_path, "shows", splits=("train", "validation", "test"), hidden=("validation",))
    for name, split in (("hides", "validation"), ("shows", "test")):
        found = registry.load_dataset(f"tfds:{name}")
        assert by_content(*found.test) == by_content(TEST, np.arange(7) % 3)
        assert found.description == f"test images from the split {split} of tfds:{name}"


def test_tfds_is_imported_when_it_is_needed_and_says_nothing(prepared):
    code = (
        "import os, sys\n"
        "import byov_jax\n"
        "from byov_jax.data import registry\n"
        "assert not {'tensorflow', 'tensorflow_datasets'} & set(sys.modules)\n"
        f"os.environ['TFDS_DATA_DIR'] = {str(prepared)!r}\n"
        "assert registry.load_dataset('tfds:tiny_images').train.image.shape == (20, 6, 4, 3)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert not result.stderr


def test_what_is_not_prepared_says_how_to(tmp_path, at):
    at(tmp_path)
    for name in ("cifar10", "cifar10:3.0.2", "cifar10_corrupted/fog_1"):
        assert refusal(f"tfds:{name}") == (
            f"tfds:{name} is not prepared in {tmp_path} (TFDS_DATA_DIR): "
            "run pip install 'byov-jax[tf]' and then "
            'python -c "import tensorflow_datasets as tfds; '
            f"tfds.builder('{name}', file_format='array_record').download_and_prepare()\""
        )


def test_an_unknown_name_is_refused(tmp_path, at):
    at(tmp_path)
    assert refusal("tfds:cifarr10").endswith("not known to tfds: did you mean tfds:cifar10?")
    assert "tfds:xyzzyx is not prepared in" in refusal("tfds:xyzzyx")
    for name in ("", "a b", "../../etc"):
        assert refusal(f"tfds:{name}").startswith(f"tfds:{name}: expected tfds:NAME[/CONFIG][:VERSION]")


def test_another_version_is_not_prepared(prepared, at):
    at(prepared)
    assert "tfds:tiny_images:2.0.0 is not prepared in" in refusal("tfds:tiny_images:2.0.0")


def copied(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return tmp_path / "tiny_images" / "1.0.0"


def write_tfrecord(file, records) -> None:
    """As TensorFlow writes it, but for the checksums, which are not read."""
    parts = [struct.pack("<QI", len(record), 0) + record + bytes(4) for record in records]
    file.write_bytes(b"".join(parts))


def as_tfrecord(prepared, tmp_path, shards=2):
    """The same data set as if it had been prepared as TFRecord, in several files."""
    folder = copied(prepared, tmp_path)
    info = json.loads((folder / "dataset_info.json").read_text()) | {"fileFormat": "tfrecord"}
    for split in info["splits"]:
        old = next(folder.glob(f"*-{split['name']}.array_record*"))
        records = array_record_module.ArrayRecordReader(str(old)).read_all()
        cuts = np.linspace(0, len(records), shards + 1).astype(int)
        for i, (start, stop) in enumerate(itertools.pairwise(cuts)):
            file = folder / f"tiny_images-{split['name']}.tfrecord-{i:05}-of-{shards:05}"
            write_tfrecord(file, records[start:stop])
        split["shardLengths"] = [str(count) for count in np.diff(cuts)]
        old.unlink()
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def test_tfrecord_gives_what_array_record_gives(prepared, tmp_path, at):
    at(prepared)
    expected = registry.open_dataset("tfds:tiny_images")
    as_tfrecord(prepared, tmp_path)
    at(tmp_path)
    found = registry.open_dataset("tfds:tiny_images")
    assert found.classes == CLASSES
    for one, other in ((found.train, expected.train), (found.test, expected.test)):
        assert len(one) == len(other)
        for i in range(len(one)):
            assert one[i] == other[i]
            assert one.name(i) == other.name(i)


def test_it_can_be_prepared_once_more_with_its_labels(prepared, tmp_path, at):
    at(prepared)
    data = registry.open_dataset("tfds:tiny_images")
    convert.convert(data, tmp_path / "out", name="tfds:tiny_images")
    found = registry.open_dataset(str(tmp_path / "out"))
    assert [found.train[i] for i in range(20)] == [data.train[i] for i in range(20)]
    np.testing.assert_array_equal(found.train.label, lazy.labels(data.train))


def test_tfrecord_needs_no_tensorflow(prepared, tmp_path):
    as_tfrecord(prepared, tmp_path)
    code = (
        "import os, pickle\n"
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'tensorflow' else find(name, *rest)\n"
        f"os.environ['TFDS_DATA_DIR'] = {str(tmp_path)!r}\n"
        "from byov_jax.data import registry\n"
        "data = pickle.loads(pickle.dumps(registry.open_dataset('tfds:tiny_images').train))\n"
        "assert data[19].image.startswith(b'\\x89PNG')\n"
        "assert registry.load_dataset('tfds:tiny_images').train.image.shape == (20, 6, 4, 3)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


def test_damaged_tfrecord_is_told_in_one_line(prepared, tmp_path, at):
    at(tmp_path)
    folder = as_tfrecord(prepared, tmp_path)
    file = next(folder.glob("*train*-00001-of-*"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert refusal("tfds:tiny_images") == (
        f"tfds:tiny_images: {file} is truncated or damaged: the last record is cut off: prepare it again"
    )
    write_tfrecord(file, [b"", b""])
    assert refusal("tfds:tiny_images").endswith("holds 2 records, expected 10: prepare it again")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=file.name):
        registry.open_dataset("tfds:tiny_images")


def test_other_formats_say_how_to_prepare_again(prepared, tmp_path, at):
    at(tmp_path)
    folder = copied(prepared, tmp_path)
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "riegeli"}))
    message = refusal("tfds:tiny_images")
    assert message.startswith(
        f"tfds:tiny_images is stored in {folder} as riegeli, which has no random access: delete it, "
        "or set TFDS_DATA_DIR to a new folder, and run pip install 'byov-jax[tf]' and then python -c"
    )


def test_damage_is_told_in_one_line(prepared, tmp_path, at):
    at(tmp_path)
    folder = copied(prepared, tmp_path)
    shard = next(folder.glob("*test*"))
    shard.write_bytes(shard.read_bytes()[:1000])
    assert "image 0 of tfds:tiny_images, test cannot be read" in refusal("tfds:tiny_images")
    assert refusal("tfds:tiny_images").endswith("nor can 6 more: prepare tfds:tiny_images again")
    shard.unlink()
    assert refusal("tfds:tiny_images").endswith("nor can 6 more: prepare tfds:tiny_images again")
    (folder / "dataset_info.json").write_text("{")
    assert refusal("tfds:tiny_images").startswith(f"tfds:tiny_images in {tmp_path} cannot be read (")


def test_images_and_labels_are_needed(tmp_path, at):
    import tensorflow_datasets as tfds

    at(tmp_path)
    image, label = tfds.features.Image(shape=(6, 4, 3)), tfds.features.ClassLabel(names=CLASSES)
    prepare(tmp_path, "no_label", {"image": image})
    assert refusal("tfds:no_label").endswith("has no feature label with classes: it has image (Image)")
    prepare(tmp_path, "number", {"image": image, "label": tfds.features.Scalar(np.int64)})
    assert refusal("tfds:number").endswith("it has image (Image), label (Scalar)")
    prepare(tmp_path, "no_image", {"label": label, "name": tfds.features.Text()})
    assert refusal("tfds:no_image").endswith(
        "has no feature image of 8 bits: it has label (ClassLabel), name (Text)"
    )


def test_missing_splits_and_labels_are_refused(tmp_path, at):
    at(tmp_path)
    prepare(tmp_path, "no_test", splits=("train", "extra"))
    assert refusal("tfds:no_test") == "tfds:no_test has no split test, it has train, extra"
    prepare(tmp_path, "hidden", label=lambda i: -1)
    assert refusal("tfds:hidden") == "tfds:hidden: train has images without a label"
