"""Digests of data sets: independent of place and format, and changed by any change of the data."""

import shutil
import time

import numpy as np
import pytest
from data import photos

from byov_jax.data import convert, registry
from byov_jax.data import digest as digests
from byov_jax.data.dataset import Images, PackedStrings
from byov_jax.data.loading import lazy
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.data.sources import folder as folders


def digest(place, loader="stream"):
    data = registry.load_dataset(str(place), loader=loader, resize=8, size=8)
    return digests.of_images(data.train, data.test)


@pytest.fixture
def folder(tmp_path):
    return photos.write_folder(tmp_path / "photos")


def test_the_same_images_elsewhere_or_packed_are_the_same(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other" / "place")
    convert.convert(registry.open_dataset(str(folder)), tmp_path / "prepared", name=str(folder), shard_size=5)
    places = (tmp_path / "other" / "place", photos.write_tars(tmp_path / "tars"), tmp_path / "prepared")
    assert {digest(place) for place in places} == {digest(folder)}
    assert len(digest(folder)) == 16


def test_class_folders_without_train_are_the_same_elsewhere_or_packed(folder, tmp_path):
    shutil.copytree(folder / "train", tmp_path / "classes")
    shutil.copytree(tmp_path / "classes", tmp_path / "other" / "classes")
    opened = registry.open_dataset(str(tmp_path / "classes"))
    convert.convert(opened, tmp_path / "prepared", name="classes", shard_size=5)
    before = digest(tmp_path / "classes")
    assert digest(tmp_path / "other" / "classes") == digest(tmp_path / "prepared") == before
    prepared = registry.load_dataset(str(tmp_path / "prepared"), loader="stream", size=8)
    assert prepared.classes == photos.CLASSES
    assert prepared.description == f"{opened.description}; prepared"
    one, *_ = sorted((tmp_path / "classes" / photos.CLASSES[0]).iterdir())
    one.rename(tmp_path / "classes" / photos.CLASSES[1] / one.name)
    assert digest(tmp_path / "classes") != before


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "of another class", "in the test set"])
def test_other_images_are_others(change, folder):
    before = digest(folder)
    one, *_ = sorted((folder / "train" / photos.CLASSES[0]).iterdir())
    if change == "added":
        shutil.copy(one, one.with_name("new.JPEG"))
    elif change == "removed":
        one.unlink()
    elif change == "renamed":
        one.rename(one.with_name("new.JPEG"))
    elif change == "of another class":
        one.rename(folder / "train" / photos.CLASSES[1] / one.name)
    else:
        held, *_ = sorted((folder / "val" / photos.CLASSES[0]).iterdir())
        held.rename(held.with_name("new.JPEG"))
    assert digest(folder) != before


def test_of_images_in_memory_the_pixels_and_labels_count(folder):
    images = Images(np.zeros((3, 4, 4, 1), np.uint8), np.arange(3, dtype=np.int32))
    pixels, label = images.image.copy(), images.label[::-1]
    pixels[1, 2, 3] = 1
    found = {
        digests.of_images(one) for one in (images, Images(pixels, images.label), Images(images.image, label))
    }
    assert len(found | {digests.of_images(images, images)}) == 4
    assert digests.of_images(Images(images.image.copy(), images.label.copy())) == digests.of_images(images)
    assert digest(folder, "memory") != digest(folder)


def test_a_part_is_not_the_whole(folder):
    whole = registry.open_dataset(str(folder)).train
    some = lazy.take(LazyImages(whole, 8), np.array([0, 5, 7]))
    label = np.zeros(3, np.int32)
    assert digests.of_images(Images(some, label)) != digests.of_images(Images(LazyImages(whole, 8), label))
    assert len(some) == 3


def test_base_names():
    names = ["a/b/c.jpg", "d.jpg", "/\N{SNOWMAN}/\udcff.jpg"]
    assert PackedStrings(names).base_names() == [b"c.jpg", b"d.jpg", b"\xff.jpg"]
    assert PackedStrings([]).base_names() == []


def test_a_million_names_take_seconds():
    paths = [f"data/train/n{i % 1000:08}/n{i:08}.JPEG" for i in range(1_280_000)]
    label = np.zeros(len(paths), np.int32)
    images = Images(LazyImages(folders.FolderSource(paths, label.tolist(), {}), 224), label)
    start = time.process_time()
    digests.of_images(images)
    assert time.process_time() - start < 10


def test_damaged_names_of_a_prepared_data_set_are_one_line(folder, tmp_path):
    out = tmp_path / "prepared"
    convert.convert(registry.open_dataset(str(folder)), out, name=str(folder), shard_size=5)
    for content in ("", "{}", '{"train": ["a"], "test": []}'):
        (out / "names.json").write_text(content)
        with pytest.raises(
            ValueError, match=r"names.json cannot be read .*: prepare the data set again"
        ) as error:
            digest(out)
        assert len(str(error.value).splitlines()) == 1
