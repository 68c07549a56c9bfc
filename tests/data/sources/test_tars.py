"""The tar files of ImageNet: classes from the devkit, and one line for what does not fit together."""

import pytest
from data import photos

from byov_jax.data import registry
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.data.sources import tars
from byov_jax.errors import ImageError


@pytest.fixture
def folder(tmp_path):
    return photos.write_tars(tmp_path / "tars")


def refusal(folder) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        registry.open_dataset(str(folder))
    message = str(error.value)
    assert str(folder) in message
    return message.replace(str(folder), "ROOT")


def test_images_are_named_by_their_place_in_the_tar_files(folder):
    found = registry.open_dataset(str(folder))
    assert found.description == "3 classes; test images from ILSVRC2012_img_val.tar"
    assert found.train.name(0) == f"{folder}/ILSVRC2012_img_train.tar/n01440764.tar/n01440764_0.JPEG"
    assert found.test.name(0) == f"{folder}/ILSVRC2012_img_val.tar/ILSVRC2012_val_00000013.JPEG"


def test_what_is_cut_off_later_is_an_error_when_it_is_read(folder):
    found = registry.open_dataset(str(folder))
    with (folder / tars.TRAIN).open("r+b") as stream:
        stream.truncate(2000)
    with pytest.raises(ImageError, match=r"ILSVRC2012_img_train.tar is truncated"):
        LazyImages(found.train, 4)[:]


@pytest.mark.parametrize("name", tars.FILES)
def test_all_three_files_are_needed(folder, name):
    (folder / name).unlink()
    assert refusal(folder) == (
        f"ROOT has no {name}: it needs ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, "
        "ILSVRC2012_devkit_t12.tar.gz"
    )


@pytest.mark.parametrize("name", [tars.TRAIN, tars.VALIDATION])
@pytest.mark.parametrize("share", [0.37, 0.5])
def test_an_incomplete_download_is_refused(folder, name, share):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(share * len(content))])
    assert f"ROOT/{name} cannot be read as a tar file: " in refusal(folder)


def test_a_tar_file_of_something_else_is_refused(folder):
    (folder / tars.TRAIN).write_bytes(photos.tar([("photo.JPEG", b"")]))
    assert refusal(folder) == f"ROOT/{tars.TRAIN}: photo.JPEG is not the .tar file of a class"
    (folder / tars.TRAIN).write_bytes(b"no tar file" * 100)
    assert refusal(folder).startswith(f"ROOT/{tars.TRAIN} cannot be read as a tar file: ")
    (folder / tars.TRAIN).write_bytes(photos.tar([("n01440764.tar", photos.tar([]))]))
    photos.write_devkit(folder, [3] * 5)
    assert refusal(folder) == f"ROOT/{tars.TRAIN} holds no images"


def test_the_devkit_must_fit(folder):
    photos.write_devkit(folder, [1, 2])
    assert refusal(folder) == (f"ROOT: {tars.VALIDATION} has 5 images, {tars.DEVKIT} the classes of 2")
    photos.write_devkit(folder, [1, 2, 3, 4, 1])
    assert refusal(folder) == (
        f"ROOT/{tars.DEVKIT} has images of class n00001740, {tars.TRAIN} has no such class"
    )
    photos.write_devkit(folder, [1, 2, 3, 9, 1])
    assert refusal(folder) == f"ROOT/{tars.DEVKIT} cannot be read (9): download it again"
    (folder / tars.DEVKIT).write_bytes(b"no archive")
    assert refusal(folder).startswith(f"ROOT/{tars.DEVKIT} cannot be read (")
