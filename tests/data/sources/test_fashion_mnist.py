"""The embedded images: what is in them, and what happens when the file is damaged."""

import numpy as np
import pytest

from byov_jax.data.dataset import Dataset, Images
from byov_jax.data.sources import fashion_mnist


@pytest.fixture(scope="module")
def data() -> Dataset:
    return fashion_mnist.load()


def test_it_has_1000_training_and_200_test_images_of_each_class(data):
    for images, count in ((data.train, 1000), (data.test, 200)):
        assert images.image.shape == (10 * count, 28, 28, 1)
        assert images.image.dtype == np.uint8
        assert images.label.dtype == np.int32
        np.testing.assert_array_equal(np.bincount(images.label), np.full(10, count))
    assert len(data.classes) == 10


def test_it_starts_like_the_original_files(data):
    assert data.train.label[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert data.test.label[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
    assert data.classes[9] == "Ankle boot"
    boot = data.train.image[0, :, :, 0]
    assert boot.sum() == 76247
    assert boot[3:7, 12:18].tolist() == [
        [1, 0, 0, 13, 73, 0],
        [3, 0, 36, 136, 127, 62],
        [6, 0, 102, 204, 176, 134],
        [0, 0, 155, 236, 207, 178],
    ]


def test_no_test_image_is_a_training_image(data):
    train = {image.tobytes() for image in data.train.image}
    assert not any(image.tobytes() in train for image in data.test.image)


def test_encoding_keeps_every_pixel_and_label():
    rng = np.random.default_rng(0)

    def some(n):
        image = rng.integers(0, 256, (n, 28, 28, 1), np.uint8)
        return Images(image, rng.integers(0, 10, n, np.int32))

    data = Dataset(some(5), some(3), fashion_mnist.CLASSES)
    decoded = fashion_mnist.decode(fashion_mnist.encode(data))
    for images, expected in ((decoded.train, data.train), (decoded.test, data.test)):
        np.testing.assert_array_equal(images.image, expected.image)
        np.testing.assert_array_equal(images.label, expected.label)


@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "Git LFS pointer", "empty"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, damage):
    content = bytearray(fashion_mnist.FILE.read_bytes())
    content[1_000_000] ^= 1
    damaged = {
        "flipped byte": content,
        "truncated": content[:-1],
        "Git LFS pointer": b"version",
        "empty": b"",
    }
    file = tmp_path / "images.xz"
    file.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=r"images\.xz is damaged .*: reinstall byov_jax$") as error:
        fashion_mnist.load(file)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"images\.xz is missing: reinstall byov_jax$"):
        fashion_mnist.load(tmp_path / "images.xz")


def test_the_licence_travels_with_the_images():
    licence = (fashion_mnist.FILE.parent / "LICENSE").read_text()
    assert "MIT License" in licence
    assert "Copyright (c) 2017 Zalando SE, https://tech.zalando.com" in licence
