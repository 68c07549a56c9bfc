"""Many images: their order, their channels, and one line for what cannot be stacked."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from byov_jax.data.loading import decoded_array

RNG = np.random.default_rng(0)


def encoded(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def images(*shapes):
    return [RNG.integers(0, 256, shape, np.uint8) for shape in shapes]


def read(contents: list[bytes], names=None, **options):
    names = names or [f"image {i}" for i in range(len(contents))]
    return decoded_array.decode_all(names, lambda i: io.BytesIO(contents[i]), **options)


def refusal(contents, **options) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        read(contents, **options)
    return str(error.value)


@pytest.mark.parametrize("threads", [0, 1, 2, 7])
def test_the_order_is_that_of_the_names_whatever_the_threads(threads):
    arrays = images(*[(4, 3, 3)] * 100)

    def open_image(i):
        if i == 0 and threads > 1:
            time.sleep(0.2)  # the first image is the last to arrive
        return io.BytesIO(encoded(arrays[i]))

    found = decoded_array.decode_all([str(i) for i in range(100)], open_image, threads=threads)
    np.testing.assert_array_equal(found, np.stack(arrays))


def test_threads_are_never_far_ahead_of_the_reader():
    small = encoded(np.zeros((2, 2), np.uint8))
    opened, meanwhile = [], []

    def open_image(i):
        opened.append(i)
        if i == 0:
            time.sleep(0.2)
            meanwhile.append(len(opened))
        return io.BytesIO(small)

    assert len(decoded_array.decode_all([str(i) for i in range(2000)], open_image, threads=2)) == 2000
    assert sorted(opened) == list(range(2000))
    assert meanwhile[0] <= 5 * 16  # chunks of 16: two for each thread, and the one that is waited for


def test_one_channel_only_if_every_image_is_gray():
    gray, colour = images(*[(4, 3)] * 40), images((4, 3, 3))
    found = read([encoded(one) for one in gray])
    np.testing.assert_array_equal(found, np.stack(gray)[..., None])
    for place in (0, 20, 40):
        mixed = gray[:place] + colour + gray[place:]
        found = read([encoded(one) for one in mixed])
        expected = [one if one.ndim == 3 else np.repeat(one[..., None], 3, -1) for one in mixed]
        np.testing.assert_array_equal(found, np.stack(expected))


def test_images_of_different_size_need_a_size():
    contents = [encoded(one) for one in images((4, 3, 3), (4, 3, 3), (3, 4, 3), (9, 9, 3))]
    message = refusal(contents, names=["a.png", "b.png", "c.png", "d.png"])
    assert message == "a.png is 3x4, c.png is 4x3: set config.data.resize to the side that all images get"
    assert read(contents, resize=5).shape == (4, 5, 5, 3)


def test_the_first_image_that_cannot_be_read_is_named_and_the_others_are_counted():
    good = encoded(np.zeros((64, 64, 3), np.uint8))
    noise = encoded(*images((64, 64, 3)))
    broken = [b"", b"no image", noise[: len(noise) // 2], noise[:20]]
    for content in broken:
        for contents, more in (
            ([good, content, good], ""),
            ([content] + [good] * 20 + broken, ", nor can 4 more"),
        ):
            message = refusal(contents)
            assert message.startswith(f"image {contents.index(content)} cannot be read as an image (")
            assert message.endswith(f"){more}: remove or replace what cannot be read")
    assert "(it is empty), nor can 1 more" in refusal([b"", b""])


def test_a_decompression_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    fine, bomb, larger = (encoded(np.zeros((side, side), np.uint8)) for side in (10, 12, 30))
    for content, pixels in ((bomb, 144), (larger, 900)):  # Pillow warns of the one and raises on the other
        assert f"image 1 cannot be read as an image (Image size ({pixels} pixels) exceeds" in refusal(
            [fine, content], resize=4
        )


def test_a_file_without_permission_is_named():
    def open_image(i):
        raise PermissionError(13, "Permission denied", "secret.png")

    with pytest.raises(ValueError, match=r"^secret.png cannot be read as an image \(Permission denied\):"):
        decoded_array.decode_all(["secret.png"], open_image)


def test_more_than_half_of_the_memory_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(decoded_array, "machine_memory", lambda: 100 * 2**20)
    content, opened = encoded(np.zeros((300, 200, 3), np.uint8)), []

    def open_image(i):
        opened.append(i)
        return io.BytesIO(content)

    names = [str(i) for i in range(1000)]
    limit = "the limit is 0.0 GiB, half of what this machine has: set config.data.resize to 132 or less"
    with pytest.raises(ValueError, match=f"^1,000 images of 200x300 need 0.2 GiB of memory, {limit}$"):
        decoded_array.decode_all(names, open_image, threads=2)
    assert len(opened) < 200
    assert decoded_array.decode_all(names, open_image, resize=132).nbytes <= 50 * 2**20
    with pytest.raises(ValueError, match="1,000 images of 133x133 need"):
        decoded_array.decode_all(names, open_image, resize=133)


def test_this_machine_has_memory():
    assert 2**27 < decoded_array.machine_memory() < 2**50


def test_damaged_metadata_are_not_worth_a_warning():
    stream = io.BytesIO()
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x04\0\0\0abcd"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(stream, "JPEG", exif=exif)
    assert read([stream.getvalue()]).shape == (1, 4, 4, 1)


def test_a_name_never_breaks_the_line():
    message = refusal([b""], names=["two\nlines.png"])
    assert message.startswith("'two\\nlines.png' cannot be read")


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_are_resized_as_files_are(channels):
    array = RNG.integers(0, 256, (5, 9, 6, channels), np.uint8)
    files = [encoded(one if channels == 3 else one[..., 0]) for one in array]
    np.testing.assert_array_equal(decoded_array.resize_all(array, 4), read(files, resize=4))
    assert decoded_array.resize_all(array, 0) is array
    square = array[:, :6]
    assert decoded_array.resize_all(square, 6) is square
