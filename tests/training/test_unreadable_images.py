"""Unreadable images and changed folders: each causes one short warning, and is listed in a file."""

import os

import numpy as np
import pytest
from PIL import Image

from byov_jax.data import registry
from byov_jax.data.dataset import UnreadableImage
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.training import unreadable_images
from byov_jax.training.unreadable_images import UnreadableImages


@pytest.fixture
def said():
    return []


def lines(run, name="bad_images.txt"):
    return (run / name).read_text().splitlines()


def test_each_is_warned_of_and_listed_once(tmp_path, said):
    bad = UnreadableImages(tmp_path, said.append)
    bad.add([])
    assert not list(tmp_path.iterdir())
    bad.add([UnreadableImage("a.jpg", "it is empty"), UnreadableImage("b.jpg", "truncated")])
    bad.add([UnreadableImage("b.jpg", "truncated")])
    assert said == [
        "a.jpg cannot be read as an image (it is empty): it is replaced",
        "b.jpg cannot be read as an image (truncated): it is replaced",
    ]
    assert lines(tmp_path) == ["a.jpg\tit is empty", "b.jpg\ttruncated"]
    bad.close()
    assert said[2:] == [f"2 images could not be read: see {tmp_path}/bad_images.txt"]


def test_a_run_that_goes_on_knows_the_list(tmp_path, said):
    first = UnreadableImages(tmp_path, lambda text: None)
    first.add([UnreadableImage("a.jpg", "it is empty"), UnreadableImage("line\nbreak \udcff.jpg", "odd")])
    again = UnreadableImages(tmp_path, said.append)
    again.add(
        [
            UnreadableImage("line\nbreak \udcff.jpg", "odd"),
            UnreadableImage("a.jpg", "it is empty"),
            UnreadableImage("c.jpg", "odd"),
        ]
    )
    assert said == ["c.jpg cannot be read as an image (odd): it is replaced"]
    assert len(lines(tmp_path)) == len(again) == 3


def test_after_some_they_are_only_counted(tmp_path, said):
    bad = UnreadableImages(tmp_path, said.append)
    for i in range(500):
        bad.add([UnreadableImage(f"{i}.jpg", "broken")])
    bad.close()
    assert len(said) == unreadable_images.MOST_WARNINGS + 2
    assert "only counted" in said[-2]
    assert "500 images could not be read" in said[-1]
    assert len(lines(tmp_path)) == 500


def test_every_process_has_its_own_list(tmp_path, said, monkeypatch):
    monkeypatch.setattr(unreadable_images.jax, "process_index", lambda: 3)
    UnreadableImages(tmp_path, said.append).add([UnreadableImage("a.jpg", "it is empty")])
    assert lines(tmp_path, "bad_images.3.txt") == ["a.jpg\tit is empty"]


def test_a_full_disk_ends_nothing_and_loses_nothing(tmp_path, said, monkeypatch):
    def full(file, text):
        raise OSError(28, "No space left on device")

    bad = UnreadableImages(tmp_path, said.append)
    with monkeypatch.context() as patch:
        patch.setattr(unreadable_images.files, "append", full)
        bad.add([UnreadableImage("a.jpg", "it is empty")])
        bad.close()
    assert said[-1].endswith("which could not be written (No space left on device)")
    bad.add([UnreadableImage("b.jpg", "it is empty")])
    assert lines(tmp_path) == ["a.jpg\tit is empty", "b.jpg\tit is empty"]


@pytest.fixture
def photos(tmp_path):
    for name in ("train/a", "train/b", "test/a"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for i in range(2):
            Image.fromarray(np.full((8, 8, 3), 9 * i, np.uint8)).save(folder / f"{i}.png")
    for folder in tmp_path.rglob("*/"):
        os.utime(folder, (1, 1))
    return tmp_path / "photos"


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "new class", "gone", "test"])
def test_a_folder_that_changes_is_named_once(change, photos, tmp_path, said):
    found = registry.open_dataset(str(photos))
    images = [LazyImages(part, 8, "replace") for part in (found.train, found.test)]
    bad = UnreadableImages(tmp_path, said.append)
    (photos / "notes.txt").write_text("beside the images anything may change")
    bad.check(*images)
    assert said == []
    expected = photos / "train/b"
    if change == "added":
        (expected / "2.png").write_bytes(b"")
    elif change == "removed":
        (expected / "1.png").unlink()
    elif change == "renamed":
        (expected / "1.png").rename(expected / "3.png")
    elif change == "new class":
        (photos / "train/c").mkdir()
        expected = photos / "train"
    elif change == "gone":
        expected.rename(tmp_path / "b")
        expected = photos / "train"
    else:
        expected = photos / "test/a"
        (expected / "0.png").unlink()
    bad.check(*images)
    bad.check(*images)
    (text,) = said
    assert text.startswith(f"{expected} has changed since the run began")


def test_a_file_that_vanishes_is_a_bad_image(photos, tmp_path, said):
    found = registry.open_dataset(str(photos))
    images = LazyImages(found.test, 8, "replace")
    (photos / "test/a/0.png").unlink()
    images[:]
    UnreadableImages(tmp_path, said.append).check(images)
    assert (
        said[0]
        == f"{photos}/test/a/0.png cannot be read as an image (No such file or directory): it is replaced"
    )
    assert len(said) == 2  # and the folder has changed


def test_photos_without_classes_may_not_change_either(tmp_path, said):
    for name in ("2019/1.png", "2019/2.png", "3.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name)
    os.utime(tmp_path / "photos", (1, 1))
    found = registry.open_dataset(str(tmp_path / "photos"))
    assert found.train.changed_folder() is None
    (tmp_path / "photos/2020").mkdir()
    assert {found.train.changed_folder(), found.test.changed_folder()} == {str(tmp_path / "photos")}
