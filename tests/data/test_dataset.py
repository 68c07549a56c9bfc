"""One contract for all sources: the same images are the same records, in threads and other processes too."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from data import photos

from byov_jax.data import convert, registry
from byov_jax.data.dataset import ArraySource, PackedStrings, Source
from byov_jax.data.loading import lazy
from byov_jax.errors import ImageError


def write(kind, tmp_path) -> str:
    if kind == "folder":
        return str(photos.write_folder(tmp_path / "photos"))
    if kind == "tars":
        return str(photos.write_tars(tmp_path / "tars"))
    place = write("folder", tmp_path)
    convert.convert(registry.open_dataset(place), tmp_path / "prepared", name=place, shard_size=5)
    return str(tmp_path / "prepared")


@pytest.fixture(params=["folder", "tars", "prepared"])
def place(request, tmp_path):
    return write(request.param, tmp_path)


def test_all_kinds_give_the_same_records(place):
    found = registry.open_dataset(place)
    assert found.classes == photos.CLASSES
    for one, (split, files) in zip((found.train, found.test), photos.images().items(), strict=True):
        assert isinstance(one, Source)
        assert len(one) == sum(photos.COUNTS[split])
        for i, (name, content) in enumerate(files.items()):
            assert one[i] == (content, photos.CLASSES.index(name.split("/")[0]))
            assert name.split("/")[1] in one.name(i)
        expected = np.repeat(np.arange(3), photos.COUNTS[split])
        np.testing.assert_array_equal(lazy.labels(one), expected)
        assert lazy.labels(one).dtype == np.int32


def test_a_source_can_be_pickled_before_and_after_it_was_read(place):
    one = registry.open_dataset(place).train
    for other in (pickle.loads(pickle.dumps(one)), one[2] and pickle.loads(pickle.dumps(one))):
        assert [other[i] for i in range(len(one))] == [one[i] for i in range(len(one))]
        assert other.name(7) == one.name(7)


def test_threads_may_read_at_the_same_time(place):
    one = registry.open_dataset(place).train
    rows = np.random.default_rng(0).integers(0, len(one), 400).tolist()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one.__getitem__, rows))
    assert found == [one[i] for i in rows]


def test_a_whole_data_set_can_be_read_from_all_kinds(place):
    data = registry.load_dataset(place, resize=6)
    assert data.train.image.shape == (12, 6, 6, 3)
    assert data.test.label.tolist() == [0, 0, 1, 2, 2]


def test_arrays_in_memory():
    found = registry.open_dataset("fashion_mnist")
    assert isinstance(found.train, ArraySource)
    assert (len(found.train), len(found.test), len(found.classes)) == (10_000, 2_000, 10)
    record = found.train[3]
    np.testing.assert_array_equal(record.image, registry.load_dataset("fashion_mnist").train.image[3])
    assert record.label == found.train.label[3]
    assert found.test.name(3) == "image 3 of fashion_mnist"


def test_without_labels_they_are_minus_one(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.jpg").write_bytes(photos.encoded(np.zeros((4, 4, 3), np.uint8)))
    found = registry.open_dataset(str(tmp_path))
    assert found.classes == ()
    assert {one[0].label for one in (found.train, found.test)} == {-1}
    assert set(lazy.labels(found.train)) == {-1}


def test_what_disappears_is_an_error_when_it_is_read(tmp_path):
    place = write("folder", tmp_path)
    found = registry.open_dataset(place)
    next((tmp_path / "photos/train").rglob("*.JPEG")).unlink()
    with pytest.raises(ImageError, match="No such file or directory"):
        lazy.LazyImages(found.train, 4)[:]


def test_many_names_take_the_memory_of_their_letters():
    names = [f"train/n{i % 10:08}/picture {i} \N{SNOWMAN}\udcff.JPEG" for i in range(1000)]
    packed = PackedStrings(names)
    assert [packed[i] for i in range(1000)] == names
    letters = sum(len(name.encode("utf-8", "surrogateescape")) for name in names)
    assert len(pickle.dumps(packed)) < letters + 8 * 1001 + 1000


def test_an_image_error_survives_pickling():
    error = pickle.loads(pickle.dumps(ImageError("a.jpg", "it is empty")))
    assert (str(error), error.name, error.reason) == (
        "a.jpg cannot be read as an image (it is empty)",
        "a.jpg",
        "it is empty",
    )
