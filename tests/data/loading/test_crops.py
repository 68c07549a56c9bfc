"""Crops on the host: of any image, where torchvision would cut them, resized as Pillow would."""

import io
import math

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from byov_jax.data.dataset import ArraySource, Record, read_image
from byov_jax.data.loading import crops, decode
from byov_jax.errors import ImageError

RNG = np.random.default_rng(0)
SIZE = 64


def smooth(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Eight soft spots in a row, whatever the size: what is in the picture survives resizing."""
    coarse = RNG.integers(0, 256, (8, 8, channels), np.uint8)
    layers = [
        np.asarray(Image.fromarray(layer).resize((width, height), Image.Resampling.BICUBIC))
        for layer in np.moveaxis(coarse, -1, 0)
    ]
    return np.stack(layers, -1)


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **({"quality": 95} if kind == "JPEG" else {}) | options)
    return stream.getvalue()


def oriented(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, exif=exif, subsampling="4:4:4")


def cropped(image: bytes | np.ndarray, bits: np.ndarray, *ranges: tuple[float, float]) -> np.ndarray:
    return crops.random_crops(image, bits, SIZE, *ranges)


def whole(image: bytes | np.ndarray) -> np.ndarray:
    """The whole of a square image as one crop."""
    return cropped(image, crops.random_bits(0, 0, 0, 1), (1.0, 1.0), (1.0, 1.0))[0]


def reference(image: Image.Image, size: int = SIZE) -> np.ndarray:
    return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    out = np.empty((height, width, 3), np.uint8)
    crops.resize(image, out)
    return out


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Root of the mean squared difference, of values 0 to 255."""
    assert one.shape == other.shape
    return float(np.sqrt(np.mean((one.astype(float) - other) ** 2)))


COLOR, GRAY = Image.fromarray(smooth(150, 150)), Image.fromarray(smooth(150, 150, 1)[..., 0])
KINDS = {
    "JPEG": encoded(COLOR),
    "4:2:0": encoded(COLOR, subsampling="4:2:0"),
    "progressive": encoded(COLOR, progressive=True),
    "gray": encoded(GRAY),
    "CMYK": encoded(COLOR.convert("CMYK")),
    "PNG": encoded(COLOR, "PNG"),
    "gray PNG": encoded(GRAY, "PNG"),
    "palette": encoded(COLOR.quantize(), "PNG"),
    "array": np.asarray(COLOR),
    "gray array": np.asarray(GRAY)[..., None],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_image_gives_what_pillow_gives(kind):
    image = KINDS[kind]
    given = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else Image.fromarray(image.squeeze())
    assert difference(whole(image), reference(given)) < 1.5


@pytest.mark.parametrize("side", [1, 24, 63, 64, 65, 90, 127, 128, 129, 200, 333, 385, 1000, 2500])
def test_resizing_is_that_of_pillow(side):
    image = smooth(side, side)
    assert difference(resized(image, SIZE, SIZE), reference(Image.fromarray(image))) < 2.5


def test_shrinking_averages_what_it_leaves_out():
    lines = np.zeros((160, 160, 3), np.uint8)
    lines[::2] = 255
    for height in (50, 75):
        found = resized(lines, height, 60)
        assert np.abs(found[5:-5].astype(int) - 128).max() < 60  # without antialiasing, 0 and 255 remain


@pytest.mark.parametrize("side", [150, 300, 520, 1100])
def test_large_jpegs_are_decoded_smaller_and_look_the_same(side, monkeypatch):
    image = Image.fromarray(smooth(side, side))
    decoded = []
    decode_jpeg = simplejpeg.decode_jpeg
    monkeypatch.setattr(
        simplejpeg, "decode_jpeg", lambda *a, **k: decoded.append(decode_jpeg(*a, **k)) or decoded[-1]
    )
    assert difference(whole(encoded(image)), reference(image)) < 2.5
    expected = next(side // times for times in (8, 4, 2, 1) if side // times >= SIZE)
    assert abs(decoded[0].shape[0] - expected) <= 1


def test_the_smallest_crop_decides_how_small_a_jpeg_is_decoded():
    """An image of 256 pixels at a quarter is 64: enough for the whole, not for a part of it."""
    opened = decode.open_image(encoded(Image.fromarray(smooth(256, 256))))
    for area, expected in (((1.0, 1.0), 64), ((0.5, 0.5), 128), ((0.2, 0.2), 256)):
        sizes = []

        def decode_at(side, size, sizes=sizes):
            array = opened.decode(side, size)
            sizes.append(len(array))
            return array

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode, "open_image", lambda image, f=decode_at: opened._replace(decode=f))
            cropped(b"", crops.random_bits(0, 0, 0, 2), area, (1.0, 1.0))
        assert sizes == [expected]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_are_cut_from_the_upright_image(orientation):
    image = Image.fromarray(smooth(120, 80))
    content = oriented(image, orientation)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    bits = crops.random_bits(5, 0, 0, 3)
    found = cropped(content, bits, (0.3, 0.6))
    opened = decode.open_image(content)
    assert (opened.width, opened.height) == upright.size
    for crop, draws in zip(found, bits, strict=True):
        box = crops.random_box(draws, upright.height, upright.width, (0.3, 0.6), (3 / 4, 4 / 3))
        cut = upright.crop((box.left, box.top, box.left + box.width, box.top + box.height))
        assert difference(crop, reference(cut)) < 2.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_central_crop_is_that_of_the_upright_image(orientation):
    content = oriented(Image.fromarray(smooth(300, 200)), orientation)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert difference(crops.central_crop(content, SIZE), crops.central_crop(np.asarray(upright), SIZE)) < 2.5


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (3, 2), (900, 1400), (40, 2000), (2, 60_000)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_tiny_huge_and_odd_images(shape, kind):
    content = encoded(Image.fromarray(RNG.integers(0, 256, (*shape, 3), np.uint8)), kind)
    found = cropped(content, crops.random_bits(0, 1, 2, 4))
    assert len(np.unique(found)) > 1
    assert crops.central_crop(content, SIZE).shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("shape", [(150, 150), (100, 160), (300, 120), (75, 75), (40, 30), (704, 904)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_central_crop_is_resize_and_centre_crop(shape, kind):
    content = encoded(Image.fromarray(smooth(*shape)), kind)
    image = Image.open(io.BytesIO(content))
    side = round(SIZE * 256 / 224)
    height, width = (side * length // min(shape) for length in shape)
    left, top = round((width - SIZE) / 2), round((height - SIZE) / 2)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    expected = np.asarray(resized.crop((left, top, left + SIZE, top + SIZE)))
    rounding = 2.5 if kind == "PNG" else 4.5  # in the colours of a JPEG
    assert difference(crops.central_crop(content, SIZE), expected) < rounding


def boxes(count, height, width, area=(0.08, 1.0), aspect=(3 / 4, 4 / 3)) -> np.ndarray:
    bits = crops.random_bits(0, 0, 0, count)
    return np.array([crops.random_box(draws, height, width, area, aspect) for draws in bits])


def test_boxes_have_uniform_area_and_log_uniform_aspect_and_position():
    """In a square image a box nearly always fits if its area is small: then the first candidate is taken."""
    top, left, height, width = boxes(4000, 1000, 1000, area=(0.1, 0.5)).T
    area, aspect = height * width / 1e6, np.log(width / height)
    limit = math.log(4 / 3)
    for value, low, high in ((area, 0.1, 0.5), (aspect, -limit, limit)):
        assert value.min() > low - 0.002
        assert value.max() < high + 0.002
        assert abs(value.mean() - (low + high) / 2) < 4 * (high - low) / math.sqrt(12 * 4000)
        assert abs(value.std() - (high - low) / math.sqrt(12)) < 0.02 * (high - low)
    for start, length in ((top, height), (left, width)):
        place = start / (1000 - length)
        assert place.min() >= 0
        assert place.max() <= 1
        assert abs(place.mean() - 0.5) < 4 / math.sqrt(12 * 4000)


def test_boxes_are_those_of_the_device():
    """The same distribution as `images.views.random_box`: compared in its quantiles."""
    import jax

    from byov_jax.images.views import View, random_box, uniform_draws

    keys = jax.random.split(jax.random.key(0), 3000)
    box = jax.vmap(lambda key: random_box(uniform_draws(key), 300, 500, View(size=SIZE)))(keys)
    for host, device in zip(boxes(3000, 300, 500).T, box, strict=True):
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            assert abs(np.mean(host <= np.quantile(device, share)) - share) < 0.06


def test_where_no_box_fits_the_largest_central_one_is_taken():
    assert boxes(5, 10, 1000, area=(0.9, 1.0)).tolist() == [[0, 493, 10, 13]] * 5
    assert boxes(5, 1000, 10, area=(0.9, 1.0)).tolist() == [[493, 0, 13, 10]] * 5


def test_the_bits_depend_on_seed_step_and_row():
    found = {crops.random_bits(*key, 1).tobytes() for key in np.ndindex(4, 4, 4)}
    assert len(found) == 64
    assert crops.random_bits(1, 2, 3, 1)[0, :2].tolist() == crops.random_bits(1, 2, 3, 2)[0, :2].tolist()
    assert (
        crops.random_bits(1, 2, 3, 1)[0, 0] == 3340831800615603085
    )  # promised by NumPy for all its versions


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"no image", "it is none of JPEG"),
        (KINDS["JPEG"][:1500], "image file is truncated"),
        (b"\xff\xd8\xff", "it is none of JPEG"),
    ],
)
def test_what_cannot_be_decoded_says_why(content, reason):
    class Damaged:
        def __len__(self):
            return 1

        def __getitem__(self, i):
            return Record(content, 0)

        def name(self, i):
            return "a photo"

    for work in (whole, lambda image: crops.central_crop(image, SIZE)):
        with pytest.raises(ImageError, match=f"^a photo cannot be read as an image .{reason}") as error:
            read_image(Damaged(), 0, work)
        assert (error.value.name, error.value.reason.startswith(reason)) == ("a photo", True)


def test_what_pillow_can_still_read_is_read():
    """Bytes after the last block are a warning to simplejpeg, and nothing to Pillow."""
    content = KINDS["JPEG"][:-2] + b"\x00\x01\x02\x03" * 10 + b"\xff\xd9"
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(content)
    assert difference(whole(content), whole(KINDS["JPEG"])) < 1.5


def test_a_decompression_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    for kind in ("JPEG", "PNG", "CMYK"):
        with pytest.raises((ValueError, Warning), match=r"22500 pixels\) exceeds limit of 20000"):
            whole(KINDS[kind])


def test_the_label_comes_with_the_image():
    data = ArraySource(np.asarray(COLOR)[None], np.array([7], np.int32), "memory")
    crop, label = read_image(data, 0, whole)
    assert label == 7
    np.testing.assert_array_equal(crop, whole(np.asarray(COLOR)))
