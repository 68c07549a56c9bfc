"""Prepared data sets: whole or not at all, resumable, and nothing that was started otherwise is touched."""

import json
import re

import pytest
from data import photos

from byov_jax.data import convert, registry
from byov_jax.data.sources import arrayrecord
from byov_jax.errors import ImageError


@pytest.fixture
def place(tmp_path):
    return str(photos.write_folder(tmp_path / "photos"))


def run(place, out, **options):
    return convert.convert(registry.open_dataset(place), out, name=place, **({"shard_size": 5} | options))


def contents(out):
    return {file.name: file.read_bytes() for file in out.iterdir()}


def test_what_is_written(place, tmp_path):
    out, told = tmp_path / "new" / "out", []
    about = run(place, out, progress=told.append)
    assert sorted(file.name for file in out.iterdir()) == [
        "dataset.json",
        "names.json",
        "test-00000-of-00001.array_record",
        "train-00000-of-00003.array_record",
        "train-00001-of-00003.array_record",
        "train-00002-of-00003.array_record",
    ]
    assert about["classes"] == list(photos.CLASSES)
    assert [shard.images for shard in about["splits"]["train"]["shards"]] == [5, 5, 2]
    assert about["splits"]["test"]["label"] == [0, 0, 1, 2, 2]
    assert told[-1] == 17
    assert sorted(told) == told
    found = registry.open_dataset(str(out))
    assert found.description == "3 classes; test images from val/; prepared"
    assert found.train.name(6) == (
        f"{place}/train/n01443537/n01443537_3.JPEG in {out}/train-00001-of-00003.array_record"
    )


def test_doing_it_again_changes_nothing(place, tmp_path):
    run(place, tmp_path / "out")
    before = contents(tmp_path / "out")
    run(place, tmp_path / "out")
    assert contents(tmp_path / "out") == before


class Stop(BaseException):
    """As Ctrl-C, or the end of the machine."""


def stop_after(count):
    def tell(done):
        if done >= count:
            raise Stop

    return tell


@pytest.mark.parametrize("count", [1, 5, 7, 12, 15, 17])
def test_an_interrupted_one_is_not_usable_and_goes_on(place, tmp_path, count, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(Stop):
        run(place, out, progress=stop_after(count))
    with pytest.raises(ValueError, match=r"is not finished: run the same `byov prepare` command again"):
        registry.open_dataset(str(out))
    kept = {file.name.removesuffix(".json") for file in out.glob("*.array_record.json")}
    written = []
    write = convert._write_shard
    monkeypatch.setattr(convert, "_write_shard", lambda *a: written.append(a[2].name) or write(*a))
    run(place, out)
    assert len(written) + len(kept) == 4
    assert not kept & set(written)
    run(place, tmp_path / "at once")
    assert contents(out) == contents(tmp_path / "at once")


def test_a_shard_that_is_half_there_is_written_again(place, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(Stop):
        run(place, out, progress=stop_after(12))
    first, second = (out / f"train-0000{i}-of-00003.array_record" for i in range(2))
    first.write_bytes(first.read_bytes()[:100])
    (out / f"{second.name}.partial").write_bytes(b"half")
    run(place, out)
    run(place, tmp_path / "at once")
    assert contents(out) == contents(tmp_path / "at once")


@pytest.mark.parametrize("finished", [True, False])
def test_another_data_set_is_not_overwritten(place, tmp_path, finished):
    out = tmp_path / "out"
    if finished:
        run(place, out)
    else:
        with pytest.raises(Stop):
            run(place, out, progress=stop_after(7))
    before = contents(out)
    other = str(photos.write_folder(tmp_path / "others"))
    with pytest.raises(ValueError, match=f"{out} was started with a different source: delete it, or"):
        run(other, out)
    with pytest.raises(ValueError, match="was started with a different shard_size"):
        run(place, out, shard_size=4)
    (tmp_path / "photos/train/n01440764/n01440764_0.JPEG").unlink()
    with pytest.raises(ValueError, match="was started with a different images"):
        run(place, out)
    assert contents(out) == before


def test_a_folder_of_something_else_is_not_written_to(place, tmp_path):
    with pytest.raises(ValueError, match=f"{place} is not empty: delete it, or write to another folder"):
        run(place, tmp_path / "photos")
    with pytest.raises(ValueError, match="shard_size=0 must be at least 1"):
        run(place, tmp_path / "out", shard_size=0)
    with pytest.raises(ValueError, match="the images of fashion_mnist are not in image files"):
        run("fashion_mnist", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_cannot_be_read_is_named(place, tmp_path):
    data = registry.open_dataset(place)
    (tmp_path / "photos/train/n01440764/n01440764_0.JPEG").unlink()
    with pytest.raises(ImageError, match=r"n01440764_0.JPEG cannot be read as an image \(No such file"):
        convert.convert(data, tmp_path / "out", name=place)


def test_records_keep_bytes_labels_and_names():
    for image in (
        arrayrecord.NamedImage(b"\xff\xd8bytes", 7, "a/b.jpg"),
        arrayrecord.NamedImage(b"", -1, "\udcff\n\N{SNOWMAN}"),
    ):
        assert arrayrecord.unpack(arrayrecord.pack(image)) == image


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 9}, "has version 9, expected 1: prepare the data set again"),
        ({"splits": {}}, "is damaged ('train'): prepare the data set again"),
        (None, "is damaged (Expecting value: line 1 column 1 (char 0)): prepare the data set again"),
    ],
)
def test_a_damaged_description_is_told_in_one_line(place, tmp_path, change, problem):
    run(place, tmp_path / "out")
    file = tmp_path / "out" / "dataset.json"
    file.write_text("" if change is None else json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))} {re.escape(problem)}$"):
        registry.open_dataset(str(tmp_path / "out"))


def test_labels_that_do_not_fit_are_damage(place, tmp_path):
    run(place, tmp_path / "out")
    file = tmp_path / "out" / "dataset.json"
    about = json.loads(file.read_text())
    about["splits"]["test"]["label"].pop()
    file.write_text(json.dumps(about))
    with pytest.raises(ValueError, match="test has 4 labels for 5 images"):
        registry.open_dataset(str(tmp_path / "out"))
