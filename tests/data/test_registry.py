"""Data sets by name or place: what is read, and one line with the place for what cannot be."""

import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from byov_jax.data import registry
from byov_jax.data.sources import fashion_mnist

RNG = np.random.default_rng(0)
COLOR = {
    "train_image": RNG.integers(0, 256, (6, 5, 4, 3), np.uint8),
    "train_label": np.array([0, 1, 2, 2, 1, 0]),
    "test_image": RNG.integers(0, 256, (3, 5, 4, 3), np.uint8),
    "test_label": np.array([2, 0, 1]),
}
GRAY = {
    "train-images-idx3-ubyte": RNG.integers(0, 256, (6, 5, 4), np.uint8),
    "train-labels-idx1-ubyte": np.array([0, 1, 2, 2, 1, 0], np.uint8),
    "t10k-images-idx3-ubyte": RNG.integers(0, 256, (3, 5, 4), np.uint8),
    "t10k-labels-idx1-ubyte": np.array([2, 0, 3], np.uint8),
}


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_folder(folder, arrays, zipped=False):
    folder.mkdir()
    for name, array in arrays.items():
        content = idx_bytes(array)
        file = folder / (f"{name}.gz" if zipped else name)
        file.write_bytes(gzip.compress(content) if zipped else content)
    return str(folder)


def write_npz(file, **changes):
    arrays = COLOR | changes
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return str(file)


def refusal(place, kind=ValueError) -> str:
    """The message of the refusal: one line that names the place."""
    with pytest.raises(kind) as error:
        registry.load_dataset(str(place))
    message = str(error.value)
    assert str(place) in message
    assert "\n" not in message
    return message


def test_the_embedded_images_by_name():
    found, expected = registry.load_dataset("fashion_mnist"), fashion_mnist.load()
    assert found.classes == fashion_mnist.CLASSES
    np.testing.assert_array_equal(found.train.image, expected.train.image)
    np.testing.assert_array_equal(found.test.label, expected.test.label)


@pytest.mark.parametrize("zipped", [True, False], ids=["gzipped", "plain"])
def test_a_folder_of_idx_files(tmp_path, zipped):
    found = registry.load_dataset(write_folder(tmp_path / "idx", GRAY, zipped))
    np.testing.assert_array_equal(found.train.image[..., 0], GRAY["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(found.train.label, GRAY["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(found.test.image[..., 0], GRAY["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(found.test.label, GRAY["t10k-labels-idx1-ubyte"])
    assert found.train.image.shape == (6, 5, 4, 1)
    assert found.train.label.dtype == found.test.label.dtype == np.int32
    assert found.classes == ("0", "1", "2", "3")  # the largest label is among the test images


def test_an_npz_file(tmp_path):
    found = registry.load_dataset(write_npz(tmp_path / "data.npz"))
    np.testing.assert_array_equal(found.train.image, COLOR["train_image"])
    np.testing.assert_array_equal(found.train.label, COLOR["train_label"])
    np.testing.assert_array_equal(found.test.image, COLOR["test_image"])
    np.testing.assert_array_equal(found.test.label, COLOR["test_label"])
    assert found.train.label.dtype == found.test.label.dtype == np.int32
    assert found.classes == ("0", "1", "2")


def test_an_npz_file_may_name_its_classes_and_more_than_it_shows(tmp_path):
    names = ("cat", "dog", "élan", "nothing so far")
    assert registry.load_dataset(write_npz(tmp_path / "data.npz", classes=np.array(names))).classes == names


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_labels_of_any_integer_type(tmp_path, dtype):
    file = write_npz(tmp_path / "data.npz", train_label=COLOR["train_label"].astype(dtype))
    np.testing.assert_array_equal(registry.load_dataset(file).train.label, COLOR["train_label"])


@pytest.mark.parametrize("name", ["missing", "missing.npz", "fashion_mnits", "notes.txt"])
def test_a_place_without_data_is_refused(tmp_path, name):
    (tmp_path / "notes.txt").write_text("no data")
    assert refusal(tmp_path / name).endswith(
        "is neither 'fashion_mnist', nor tfds:NAME, nor an existing folder or .npz file"
    )


def test_no_name_at_all_is_refused():
    with pytest.raises(ValueError, match="data '' is neither"):
        registry.load_dataset("")  # not the folder that one happens to be in


def test_a_folder_of_images(tmp_path):
    for split, value in (("train", 10), ("test", 20)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("L", (4, 5), value).save(tmp_path / split / name / "1.png")
    found = registry.load_dataset(str(tmp_path))
    assert found.classes == ("cat", "dog")
    assert found.train.image.shape == found.test.image.shape == (2, 5, 4, 1)
    assert set(found.test.image.ravel()) == {20}
    assert registry.load_dataset(str(tmp_path), resize=3).train.image.shape == (2, 3, 3, 1)
    assert refusal(tmp_path / "train" / "cat").endswith(
        "has one image and none to hold out: add images, or a folder test/ next to train/"
    )


def test_a_folder_of_unlabelled_images(tmp_path):
    for i in range(5):
        Image.new("RGB", (4, 5)).save(tmp_path / f"{i}.png")
    found = registry.load_dataset(str(tmp_path))
    assert found.train.label is None
    assert found.classes == ()
    assert len(found.train.image) + len(found.test.image) == 5


def test_every_source_can_be_resized(tmp_path):
    gray, colour = write_folder(tmp_path / "idx", GRAY), write_npz(tmp_path / "data.npz")
    for place, channels in ((gray, 1), (colour, 3)):
        before, after = registry.load_dataset(place), registry.load_dataset(place, resize=8)
        assert after.train.image.shape == (6, 8, 8, channels)
        assert after.test.image.shape == (3, 8, 8, channels)
        np.testing.assert_array_equal(after.train.label, before.train.label)
        assert after.classes == before.classes
    assert registry.load_dataset("fashion_mnist", resize=14).test.image.shape == (2000, 14, 14, 1)


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match=r"config.data.resize=-1 must be a size in pixels, or 0"):
        registry.load_dataset("fashion_mnist", resize=-1)


@pytest.mark.parametrize("name", list(GRAY))
def test_an_incomplete_folder_is_refused(tmp_path, name):
    folder = write_folder(tmp_path / "idx", {other: GRAY[other] for other in GRAY if other != name})
    assert refusal(folder, FileNotFoundError).endswith(f"has neither {name}.gz nor {name}")


def test_a_damaged_idx_file_is_named(tmp_path):
    folder = tmp_path / "idx"
    write_folder(folder, GRAY)
    file = folder / "t10k-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    assert f"{file}: truncated" in refusal(folder)


@pytest.mark.parametrize("name", list(COLOR))
def test_an_npz_file_that_lacks_an_array_is_refused(tmp_path, name):
    message = refusal(write_npz(tmp_path / "data.npz", **{name: None}))
    present = ", ".join(other for other in COLOR if other != name)
    assert message.endswith(f"lacks {name}; it has {present}")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train_image": COLOR["train_image"] / 255.0}, "images are float64 (6, 5, 4, 3); expected uint8"),
        ({"test_image": COLOR["test_image"].astype(np.int64)}, "images are int64 (3, 5, 4, 3)"),
        ({"train_image": COLOR["train_image"][..., 0]}, "images are uint8 (6, 5, 4)"),
        ({"train_image": COLOR["train_image"][..., :2]}, "images are uint8 (6, 5, 4, 2)"),
        ({"train_image": COLOR["train_image"][:, :0]}, "images are uint8 (6, 0, 4, 3)"),
        ({"train_label": COLOR["train_label"].astype(np.float32)}, "labels are float32 (6,)"),
        ({"train_label": COLOR["train_label"] > 0}, "labels are bool (6,); expected 6 integers"),
        ({"train_label": COLOR["train_label"][:, None]}, "labels are int64 (6, 1); expected 6 integers"),
        ({"test_label": COLOR["train_label"]}, "labels are int64 (6,); expected 3 integers"),
        ({"test_label": np.array([0, -1, 1])}, "labels are -1 to 1; expected classes from 0"),
        ({"test_label": np.array([0, 2**32, 1])}, "labels are 0 to 4294967296"),  # 0 in 32 bits
        ({"train_label": np.full(6, 2**31 - 1, np.int32)}, "labels are 2147483647 to 2147483647"),
        ({"classes": np.array(["cat", "dog"])}, "labels go up to 2, which needs 3 classes; they are (2,)"),
        ({"classes": np.array("cat")}, "which needs 3 classes; they are ()"),
        ({"test_image": COLOR["test_image"][:, :4]}, "training images are (5, 4, 3), test images (4, 4, 3)"),
        ({"train_image": COLOR["train_image"][:0], "train_label": np.zeros(0, int)}, "(0, 5, 4, 3)"),
        ({"test_image": COLOR["test_image"][:0], "test_label": np.zeros(0, int)}, "at least one pixel"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, changes, problem):
    assert problem in refusal(write_npz(tmp_path / "data.npz", **changes))


def test_an_empty_idx_file_is_refused(tmp_path):
    nothing = {"t10k-images-idx3-ubyte": np.zeros((0, 5, 4), np.uint8)}
    folder = write_folder(
        tmp_path / "idx", GRAY | nothing | {"t10k-labels-idx1-ubyte": np.zeros(0, np.uint8)}
    )
    assert "images are uint8 (0, 5, 4, 1)" in refusal(folder)


@pytest.mark.parametrize("name", ["train_image", "classes"])
def test_pickled_objects_are_never_loaded(tmp_path, name):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was executed",))

    objects = np.empty(3, object)
    objects[:] = [Bomb()] * 3
    assert "Object arrays cannot be loaded" in refusal(write_npz(tmp_path / "data.npz", **{name: objects}))


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    file = tmp_path / "data.npz"
    write_npz(file)
    whole = file.read_bytes()
    for content in (b"train_image,train_label\n" * 20, b"", whole[: len(whole) // 2]):
        file.write_bytes(content)
        assert refusal(file).endswith("cannot be read as .npz: File is not a zip file")
    with file.open("wb") as stream:
        np.save(stream, COLOR["train_image"])
    assert refusal(file).endswith("cannot be read as .npz: File is not a zip file")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["plain", "compressed"])
def test_a_damaged_archive_is_refused(tmp_path, save):
    file = tmp_path / "data.npz"
    save(file, **COLOR)
    content = bytearray(file.read_bytes())
    for place in range(200, 230):
        content[place] ^= 0xFF
    file.write_bytes(content)
    assert "cannot be read as .npz: " in refusal(file)
