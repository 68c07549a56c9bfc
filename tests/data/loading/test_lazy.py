"""Sources for evaluation: like arrays, with each image exactly once."""

import io

import numpy as np
import pytest
from PIL import Image

from byov_jax.data.dataset import ArraySource, Record
from byov_jax.data.loading import crops
from byov_jax.data.loading.lazy import LazyImages, labels
from byov_jax.errors import ImageError

RNG = np.random.default_rng(0)
COUNT, SIZE = 40, 16


class Encoded:
    """Images of different size, whose labels only reading tells."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self._content = []
        for i in range(COUNT):
            stream = io.BytesIO()
            Image.fromarray(RNG.integers(0, 256, (20 + i, 50 - i, 3), np.uint8)).save(stream, "PNG")
            self._content.append(stream.getvalue())

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> Record:
        self.read.append(i)
        return Record(self._content[i], i % 7)

    def name(self, i: int) -> str:
        return f"photo {i}"


@pytest.fixture
def data():
    return Encoded()


def test_it_looks_like_an_array_of_central_crops(data):
    images = LazyImages(data, SIZE)
    expected = np.stack([crops.central_crop(data[i].image, SIZE) for i in range(COUNT)])
    assert (images.shape, images.dtype, images.ndim, len(images)) == (expected.shape, np.uint8, 4, COUNT)
    np.testing.assert_array_equal(np.asarray(images), expected)
    rows = np.array([3, 39, 3, -1])
    for key in (0, -1, slice(5, 9), slice(None, None, 7), slice(9, 2, -3), slice(4, 4), rows, rows.tolist()):
        np.testing.assert_array_equal(images[key], expected[key])
    np.testing.assert_array_equal(images[np.arange(4).reshape(2, 2)], expected[:4].reshape(2, 2, 16, 16, 3))
    assert np.asarray(images, np.float32).dtype == np.float32


def test_only_what_is_asked_for_is_read(data):
    LazyImages(data, SIZE)[np.array([30, 2])]
    assert sorted(data.read) == [2, 30]


def test_a_row_that_does_not_exist_is_an_index_error(data):
    with pytest.raises(IndexError):
        LazyImages(data, SIZE)[COUNT]


def test_it_cannot_be_had_without_a_copy(data):
    with pytest.raises(ValueError, match="cannot be converted without a copy"):
        np.asarray(LazyImages(data, SIZE), copy=False)


def test_an_image_that_cannot_be_read_is_named(data):
    data._content[17] = b"no image"
    with pytest.raises(ImageError, match=r"^photo 17 cannot be read as an image"):
        LazyImages(data, SIZE)[:]


def test_an_image_that_cannot_be_read_can_be_gray(data):
    data._content[17] = b"no image"
    images = LazyImages(data, SIZE, "replace")
    found = images[15:20]
    assert (found[2] == 128).all()
    assert not (found == 128).all(axis=(1, 2, 3))[[0, 1, 3, 4]].any()
    np.testing.assert_array_equal(images[17], found[2])
    (bad,) = images.unreadable.items()
    assert bad[0] == "photo 17"
    assert bad[1].startswith("it is none of JPEG")


def test_labels_are_read_where_the_source_does_not_know_them(data):
    found = labels(data)
    np.testing.assert_array_equal(found, np.arange(COUNT) % 7)
    assert found.dtype == np.int32
    assert sorted(data.read) == list(range(COUNT))


def test_labels_that_are_known_are_not_read():
    class Closed(ArraySource):
        def __getitem__(self, i):
            raise AssertionError("it was read")

    known = np.array([2, 0, 1], np.int32)
    np.testing.assert_array_equal(labels(Closed(np.zeros((3, 2, 2, 1), np.uint8), known, "memory")), known)
