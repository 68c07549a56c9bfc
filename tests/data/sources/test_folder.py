"""A folder of images: splits, classes and labels, and one line for each folder that cannot be used."""

import io
import os
import string
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from byov_jax.cli import train
from byov_jax.data import registry
from byov_jax.data.dataset import Dataset, Unlabelled
from byov_jax.data.loading import decoded_array
from byov_jax.data.sources import folder


def write(file, value=0, size=(3, 2)):
    """An image of one colour, so that it can be told from others."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(file)
    return file


def write_all(root, *names):
    for value, name in enumerate(names):
        write(root / name, value)
    return root


def values(images) -> list[int]:
    return images.image[:][:, 0, 0, 0].tolist()


def refusal(root, **options) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        registry.load_dataset(str(root), **options)
    message = str(error.value)
    assert str(root) in message
    return message.replace(str(root), "ROOT")


@pytest.mark.parametrize("test", ["test", "val", "validation"])
def test_classes_are_the_sorted_folders_of_train(tmp_path, test):
    write_all(
        tmp_path,
        "train/dog/2.png",
        "train/dog/1.png",
        "train/Cat/a.png",
        "train/ant/z.png",
        f"{test}/dog/1.png",
        f"{test}/ant/1.png",
    )
    found = registry.load_dataset(str(tmp_path))
    assert isinstance(found, Dataset)
    assert found.classes == ("Cat", "ant", "dog")
    assert values(found.train) == [2, 3, 1, 0]
    assert found.train.label.tolist() == [0, 1, 2, 2]
    assert values(found.test) == [5, 4]
    assert found.test.label.tolist() == [1, 2]
    assert found.train.label.dtype == found.test.label.dtype == np.int32
    assert found.train.image.shape == (4, 2, 3, 3)
    assert found.description == f"3 classes; test images from {test}/"


def test_test_goes_before_val(tmp_path):
    write_all(tmp_path, "train/a/1.png", "val/a/1.png", "test/a/1.png")
    assert values(registry.load_dataset(str(tmp_path)).test) == [2]


def test_images_of_a_class_may_lie_deeper_and_end_in_any_case(tmp_path):
    write_all(tmp_path, "train/a/x/1.PNG", "train/a/y/2.JpEg", "train/a/0.bmp", "test/a/deep/er/1.gif")
    found = folder.find_files(tmp_path)
    names = [os.path.relpath(path, tmp_path) for path in found.train + found.test]
    assert names == ["train/a/0.bmp", "train/a/x/1.PNG", "train/a/y/2.JpEg", "test/a/deep/er/1.gif"]


def test_hidden_files_and_what_lies_beside_the_splits_do_not_count(tmp_path):
    write_all(tmp_path, "train/a/1.png", "train/a/.2.png", "train/.cache/1.png", "test/a/1.png", "more/1.png")
    for name in ("train/.DS_Store", "train/a/._1.png", "README.txt"):
        (tmp_path / name).write_text("no image")
    found = registry.load_dataset(str(tmp_path))
    assert (values(found.train), values(found.test), found.classes) == ([0], [3], ("a",))


def test_links_are_followed(tmp_path):
    write_all(tmp_path, "elsewhere/1.png", "root/test/a/1.png")
    (tmp_path / "root/train").mkdir()
    (tmp_path / "root/train/a").symlink_to(tmp_path / "elsewhere")
    assert values(registry.load_dataset(str(tmp_path / "root")).train) == [0]


def test_a_fifth_of_each_class_is_held_out(tmp_path):
    names = [f"{letter}/{i}.png" for letter in "ab" for i in range(1000)]
    held = folder.held_out(names, 5)
    for rows in (slice(0, 1000), slice(1000, 2000)):
        assert 160 < sum(held[rows]) < 240  # 200, and 3 times the root of 1000 * 0.2 * 0.8
    for name in names[:30]:
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).touch()
    found = folder.find_files(tmp_path)
    expected = [name for name, out in zip(names[:30], held, strict=False) if out]
    assert [f"a/{os.path.basename(path)}" for path in found.test] == sorted(expected)
    assert sorted(found.train + found.test) == sorted(map(str, tmp_path.rglob("*.png")))
    assert not set(found.train) & set(found.test)
    assert "one in 5 of each class, held out by a hash of the path" in found.description


def test_an_image_stays_in_its_split_when_others_are_added():
    before = [f"a/{i}.png" for i in range(100)]
    after = sorted([*before, *(f"a/new {i}.png" for i in range(300))])
    side = dict(zip(after, folder.held_out(after, 5), strict=True))
    assert [side[name] for name in before] == folder.held_out(before, 5)


def test_the_split_is_the_same_everywhere():
    """SHA-256 of these names, first byte below 51.2: a fifth of 256."""
    names = [f"{letter}.png" for letter in string.ascii_lowercase]
    held = [name[0] for name, out in zip(names, folder.held_out(names, 5), strict=True) if out]
    assert "".join(held) == "ijmst"


@pytest.mark.parametrize("count", range(2, 12))
def test_both_splits_have_at_least_one_image_of_a_class_of_two_or_more(count):
    for letter in string.ascii_lowercase:
        held = folder.held_out([f"{letter}/{i}.jpg" for i in range(count)], 5)
        assert 1 <= sum(held) < count


def test_an_only_image_is_for_training(tmp_path):
    write_all(tmp_path, "train/a/1.png", "train/b/1.png", "train/b/2.png")
    found = registry.load_dataset(str(tmp_path))
    assert sorted(found.train.label.tolist()) == [0, 1]
    assert found.test.label.tolist() == [1]


def write_photos(root) -> Path:
    """Class folders without train/: 60 cats, 40 dogs of which some lie deeper, and a single fox."""
    names = [f"cat/{i:02}.png" for i in range(60)]
    names += [f"dog/{'deep/er/' * (i % 2)}{i:02}.png" for i in range(40)]
    return write_all(root, *names, "fox/1.png")


@pytest.mark.parametrize("loader", ["memory", "stream"])
def test_class_folders_without_train_keep_their_labels(tmp_path, loader):
    root = write_photos(tmp_path)
    found = registry.load_dataset(str(root), loader=loader, size=2)
    assert isinstance(found, Dataset)
    assert found.classes == ("cat", "dog", "fox")
    for images in (found.train, found.test):
        names = np.array(["cat", "dog", "fox"])[np.array(images.label)]
        expected = ["cat" if value < 60 else "dog" if value < 100 else "fox" for value in values(images)]
        assert names.tolist() == expected
    assert sorted(values(found.train) + values(found.test)) == list(range(101))
    assert 2 in found.train.label  # the only fox
    assert (
        found.description == "3 classes; test images: one in 10 of each class, held out by a hash of the path"
    )


def test_of_class_folders_without_train_a_tenth_is_held_out_by_the_path(tmp_path):
    found = folder.find_files(write_photos(tmp_path))
    names = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*.png"))]
    groups = [[name for name in names if name.startswith(kind)] for kind in ("cat", "dog")]
    expected = [
        name for group in groups for name, out in zip(group, folder.held_out(group, 10), strict=True) if out
    ]
    assert [os.path.relpath(path, tmp_path) for path in found.test] == expected
    assert {name[:3] for name in expected} == {"cat", "dog"}
    for i in range(60, 90):
        write(tmp_path / f"cat/{i}.png")
    after = folder.find_files(tmp_path)
    assert set(found.train) <= set(after.train)
    assert set(found.test) <= set(after.test)


def test_each_class_without_train_has_a_test_image_if_it_has_two(tmp_path):
    names = [f"{letter}/{i}.png" for letter in string.ascii_lowercase for i in range(2)]
    found = folder.find_files(write_all(tmp_path, *names))
    assert found.train_label == found.test_label == list(range(26))


def test_class_folders_without_train_may_not_change(tmp_path):
    root = write_all(tmp_path / "photos", "a/1.png", "a/2.png", "b/1.png")
    os.utime(root, (1, 1))
    found = registry.open_dataset(str(root)).train
    assert found.changed_folder() is None
    (root / "c").mkdir()
    assert found.changed_folder() == str(root)


def test_images_next_to_folders_have_no_labels(tmp_path):
    write_all(tmp_path, "cat/1.png", "dog/1.png", "3.png")
    assert isinstance(registry.load_dataset(str(tmp_path)), Unlabelled)


def test_training_says_how_the_test_images_were_chosen(tmp_path, capsys, monkeypatch):
    root = write_photos(tmp_path / "photos")
    monkeypatch.setattr(
        train.trainer, "train", lambda config, *_, **__: train.trainer.TrainResult(config.steps, 0)
    )
    arguments = ["--config=folder:byol", f"--config.data.source={root}", "--config.batch_size=8"]
    assert train.main([*arguments, f"--workdir={tmp_path / 'run'}", "--compilation_cache=off"]) == 0
    line = f"{root}: 3 classes; test images: one in 10 of each class, held out by a hash of the path"
    assert capsys.readouterr().out.splitlines()[0] == line


@pytest.mark.parametrize("place", ["", "some/where/", "train/"])
def test_without_classes_there_are_no_labels(tmp_path, place):
    write_all(tmp_path, *(f"{place}{i:02}.png" for i in range(40)))
    found = registry.load_dataset(str(tmp_path))
    assert isinstance(found, Unlabelled)
    assert found.train.label is None
    assert found.test.label is None
    assert found.classes == ()
    assert sorted(values(found.train) + values(found.test)) == list(range(40))
    base = tmp_path / "train" if place == "train/" else tmp_path
    names = [path.relative_to(base).as_posix() for path in sorted(tmp_path.rglob("*.png"))]
    assert values(found.test) == [i for i, out in enumerate(folder.held_out(names, 10)) if out]
    assert found.description == "no labels; test images: one in 10, held out by a hash of the path"


def test_unlabelled_images_may_have_a_test_folder(tmp_path):
    write_all(tmp_path, "train/1.png", "train/2.png", "test/a/1.png", "test/2.png")
    found = registry.load_dataset(str(tmp_path))
    assert isinstance(found, Unlabelled)
    assert (values(found.train), values(found.test)) == ([0, 1], [3, 2])


def test_images_are_resized(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(40):
        array = rng.integers(0, 256, (10 + i, 20, 3), np.uint8)
        write(tmp_path / f"{i}.png")
        Image.fromarray(array).save(tmp_path / f"{i}.png")
    found = registry.load_dataset(str(tmp_path), resize=8)
    assert found.train.image.shape[1:] == found.test.image.shape[1:] == (8, 8, 3)
    files = folder.find_files(tmp_path)
    for paths, images in ((files.train, found.train.image), (files.test, found.test.image)):
        expected = decoded_array.decode_all(
            paths, lambda i, paths=paths: io.BytesIO(Path(paths[i]).read_bytes()), resize=8, threads=1
        )
        np.testing.assert_array_equal(images, expected)


def test_different_sizes_are_refused_with_two_files(tmp_path):
    write(tmp_path / "train/a/1.png")
    write(tmp_path / "test/a/1.png", size=(5, 5))
    assert refusal(tmp_path) == (
        "ROOT/train/a/1.png is 3x2, ROOT/test/a/1.png is 5x5: "
        "set config.data.resize to the side that all images get"
    )


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "ROOT holds no images, that is files in .jpg, "),
        (["sub/sub"], "ROOT holds no images, "),
        (["train"], "ROOT/train holds no images, "),
        (["train/a"], "ROOT/train/a holds no images, "),
        (["Train/a"], "ROOT has Train/ but no train/: name the folder to train on train"),
        (["test/a", "a"], "ROOT has test/ but no train/: "),
    ],
)
def test_an_empty_folder_is_refused(tmp_path, folders, message):
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    assert refusal(tmp_path).startswith(message)


@pytest.mark.parametrize(
    ("names", "empty", "message"),
    [
        (["train/a/1.png"], "train/b", "ROOT/train/b holds no images, "),
        (["train/a/1.png", "test/a/1.png"], "train/b", "ROOT/train/b holds no images, "),
        (["train/a/1.png", "train/b/1.png", "test/a/1.png"], "test/b", "ROOT/test/b holds no images, "),
        (["train/a/1.png"], "test", "ROOT/test holds no images, "),
        (["train/1.png"], "val", "ROOT/val holds no images, "),
        (["a/1.png", "a/2.png"], "b", "ROOT/b holds no images, "),
    ],
)
def test_an_empty_class_or_test_folder_is_refused(tmp_path, names, empty, message):
    write_all(tmp_path, *names)
    (tmp_path / empty).mkdir()
    assert refusal(tmp_path).startswith(message)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/c/1.png"],
            "ROOT/test/c: ROOT/train has no such class, it has a, b",
        ),
        (
            ["train/a/1.png", "test/c/1.png", "test/d/1.png"],
            "ROOT/test/c and 1 more: ROOT/train has no such class, it has a",
        ),
        (
            ["train/a/1.png", "train/2.png"],
            "ROOT/train/2.png is next to class folders (a): move it into the folder of its class",
        ),
        (
            ["train/a/1.png", "test/1.png"],
            "ROOT/test holds images, ROOT/train class folders: sort the test images into the same",
        ),
        (["a/1.png", "b/1.png"], "ROOT has one image of each class and none to hold out: "),
        (["train/a/1.png", "train/b/1.png"], "ROOT/train has one image of each class and none to hold out: "),
        (["1.png"], "ROOT has one image and none to hold out: add images"),
    ],
)
def test_folders_that_make_no_sense_are_refused(tmp_path, names, message):
    assert refusal(write_all(tmp_path, *names)).startswith(message)


def test_many_classes_are_not_all_listed(tmp_path):
    write_all(tmp_path, *(f"train/{letter}/1.png" for letter in string.ascii_lowercase), "test/A/1.png")
    assert refusal(tmp_path).endswith("it has a, b, c, d, e, f, g, h, i, j, ...")


@pytest.mark.parametrize("name", ["Thumbs.db", "notes.txt", "README", "photo.heic", "movie.mp4"])
def test_other_files_among_images_are_refused(tmp_path, name):
    write_all(tmp_path, "train/a/1.png", "train/a/2.png")
    (tmp_path / "train/a" / name).touch()
    assert refusal(tmp_path).startswith(
        f"ROOT/train/a/{name}: not an image file, remove it; images end in .jpg, "
    )
    (tmp_path / "train/a/zoo.txt").touch()
    assert refusal(tmp_path).startswith(f"ROOT/train/a/{name} and 1 more: not an image file")
    assert refusal(tmp_path / "train/a").startswith(f"ROOT/{name} and 1 more: not an image file")


def test_other_files_next_to_class_folders_are_refused(tmp_path):
    write_all(tmp_path, "a/1.png", "a/2.png", "b/1.png")
    (tmp_path / "README.txt").touch()
    assert refusal(tmp_path) == (
        "ROOT/README.txt is next to class folders (a): move it into the folder of its class, or out"
    )


def test_a_pipe_is_no_image(tmp_path):
    write_all(tmp_path, "train/a/1.png")
    os.mkfifo(tmp_path / "train/a/2.png")
    assert refusal(tmp_path).startswith("ROOT/train/a/2.png: not an image file")


def test_a_link_that_leads_nowhere_or_in_circles_is_refused(tmp_path):
    write_all(tmp_path, "train/a/1.png", "test/a/1.png")
    link = tmp_path / "train/a/2.png"
    link.symlink_to(tmp_path / "gone.png")
    assert refusal(tmp_path).startswith(
        "ROOT/train/a/2.png cannot be read as an image (No such file or directory): remove or replace"
    )
    link.unlink()
    (tmp_path / "train/a/loop").symlink_to(tmp_path / "train")
    assert refusal(tmp_path) == "ROOT/train/a/loop/a is a link to one of its parent folders: remove it"


def test_the_first_bad_file_is_named_and_the_others_are_counted(tmp_path):
    write_all(tmp_path, *(f"train/a/{i}.png" for i in range(5)), "test/a/1.png")
    (tmp_path / "train/a/3.png").write_bytes(b"")
    assert refusal(tmp_path) == (
        "ROOT/train/a/3.png cannot be read as an image (it is empty): remove or replace what cannot be read"
    )
    (tmp_path / "train/a/2.png").write_bytes(b"no image")
    content = (tmp_path / "test/a/1.png").read_bytes()
    (tmp_path / "test/a/1.png").write_bytes(content[: len(content) // 2])
    assert refusal(tmp_path).startswith("ROOT/train/a/2.png cannot be read as an image (it is none of JPEG, ")
    assert ", nor can 2 more: remove or replace" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_folders_without_permission_are_refused(tmp_path):
    write_all(tmp_path, "train/a/1.png", "train/a/2.png")
    (tmp_path / "train/a/2.png").chmod(0)
    assert "ROOT/train/a/2.png cannot be read as an image (Permission denied)" in refusal(tmp_path)
    (tmp_path / "train/a").chmod(0)
    with pytest.raises(PermissionError, match="Permission denied"):
        registry.load_dataset(str(tmp_path))
    (tmp_path / "train/a").chmod(0o700)
