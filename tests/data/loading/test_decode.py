"""One image: every mode, orientation and size against an independent computation."""

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from byov_jax.data.loading import decode

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (5, 4, 3), np.uint8)
GRAY = RNG.integers(0, 256, (5, 4), np.uint8)
ALPHA = RNG.integers(0, 256, (5, 4), np.uint8)
TURNED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a),
}
"""What a camera held this way stored -> what is to be seen, by the EXIF standard."""


def encoded(image: Image.Image, kind: str = "PNG", **options) -> io.BytesIO:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    stream.seek(0)
    return stream


def on_black(value: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return np.round(value * (alpha / 255.0))


def bicubic(size_in: int, size_out: int, start: float, length: float) -> np.ndarray:
    """Weights [out, in] of Keys's cubic (a = -1/2) on a part of the input, stretched where it shrinks."""
    scale = length / size_out
    centre = start + (np.arange(size_out) + 0.5) * scale
    x = np.abs((np.arange(size_in) + 0.5)[None] - centre[:, None]) / max(scale, 1.0)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return weights / weights.sum(1, keepdims=True)


def central_square(image: np.ndarray, size: int) -> np.ndarray:
    height, width = image.shape[:2]
    short = min(height, width)
    rows = bicubic(height, size, (height - short) / 2, short)
    columns = bicubic(width, size, (width - short) / 2, short)
    return np.einsum("yh,hxc->yxc", rows, np.einsum("hwc,xw->hxc", image, columns))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_rgb_as_it_is(kind):
    np.testing.assert_array_equal(decode.decode_pixels(encoded(Image.fromarray(RGB), kind)), RGB)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_gray_has_one_channel(kind):
    np.testing.assert_array_equal(decode.decode_pixels(encoded(Image.fromarray(GRAY), kind)), GRAY[..., None])


def test_black_and_white_is_0_and_255():
    image = Image.fromarray(GRAY > 99)
    assert image.mode == "1"
    np.testing.assert_array_equal(decode.decode_pixels(encoded(image))[..., 0], np.where(GRAY > 99, 255, 0))


def test_jpeg_and_webp_are_close():
    smooth = np.broadcast_to(np.linspace(0, 255, 32)[None, :, None], (32, 32, 3)).astype(np.uint8)
    for kind in ("JPEG", "WEBP"):
        found = decode.decode_pixels(encoded(Image.fromarray(smooth), kind, quality=95))
        assert found.shape == smooth.shape
        assert np.abs(found.astype(int) - smooth).max() < 10


def test_a_gray_jpeg_has_one_channel():
    assert decode.decode_pixels(encoded(Image.fromarray(GRAY), "JPEG")).shape == (5, 4, 1)


def test_a_palette_becomes_its_colours():
    image = Image.fromarray((GRAY % 3).astype(np.uint8)).copy()
    image.putpalette([255, 0, 0, 0, 255, 0, 10, 20, 30])
    colours = np.array([[255, 0, 0], [0, 255, 0], [10, 20, 30]])
    for kind in ("PNG", "GIF", "BMP"):
        np.testing.assert_array_equal(decode.decode_pixels(encoded(image, kind)), colours[GRAY % 3])
    colours[1] = 0
    found = decode.decode_pixels(encoded(image, "PNG", transparency=1))
    np.testing.assert_array_equal(found, colours[GRAY % 3])


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_transparency_shows_black(kind):
    found = decode.decode_pixels(encoded(Image.fromarray(np.dstack([RGB, ALPHA])), kind))
    np.testing.assert_allclose(found, on_black(RGB, ALPHA[..., None]), atol=1)
    found = decode.decode_pixels(encoded(Image.fromarray(np.dstack([GRAY, ALPHA])), kind))
    assert found.shape == (5, 4, 1)
    np.testing.assert_allclose(found[..., 0], on_black(GRAY, ALPHA), atol=1)


def test_a_transparent_colour_shows_black():
    image = RGB.copy()
    image[0, 0] = (200, 100, 50)
    found = decode.decode_pixels(encoded(Image.fromarray(image), transparency=(200, 100, 50)))
    assert found[0, 0].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(found[1:], image[1:])


@pytest.mark.parametrize(("kind", "order"), [("PNG", "<"), ("TIFF", "<"), ("TIFF", ">"), ("PPM", "<")])
def test_16_bits_are_scaled(kind, order):
    values = np.array([[0, 128, 129, 300], [32768, 65535 - 129, 65535 - 128, 65535]])
    found = decode.decode_pixels(encoded(Image.fromarray(values.astype(f"{order}u2")), kind))
    np.testing.assert_array_equal(found[..., 0], np.round(values / 257))
    assert found[-1, -1, 0] == 255


@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_pixels_without_a_range_are_refused(dtype):
    with pytest.raises(ValueError, match="have no fixed range: convert it to 8 or 16 bits"):
        decode.decode_pixels(encoded(Image.fromarray(GRAY.astype(dtype)), "TIFF"))


@pytest.mark.parametrize("kind", ["TIFF", "JPEG"])
def test_cmyk_becomes_rgb(kind):
    inks = np.zeros((16, 16, 4), np.uint8) + np.array([200, 100, 0, 60], np.uint8)
    expected = (255 - np.array([200.0, 100.0, 0.0])) * (255 - 60) / 255
    found = decode.decode_pixels(encoded(Image.fromarray(inks, "CMYK"), kind))
    np.testing.assert_allclose(found, np.broadcast_to(expected, (16, 16, 3)), atol=3)


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True})])
def test_exif_orientation(kind, options, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode.decode_pixels(encoded(Image.fromarray(RGB), kind, exif=exif, **options))
    np.testing.assert_array_equal(found, TURNED[orientation](RGB))


@pytest.mark.parametrize("orientation", TURNED)
def test_exif_orientation_of_a_jpeg_that_is_resized(orientation):
    stored = np.zeros((64, 96, 3), np.uint8)
    stored[:32, :48] = 250
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode.decode_pixels(encoded(Image.fromarray(stored), "JPEG", exif=exif, quality=95), resize=8)
    corners = TURNED[orientation](np.array([[250, 0], [0, 0]]))
    np.testing.assert_allclose(found[1::5, 1::5, 0], corners, atol=20)


def photo(orientation: int, kind: str = "JPEG", mode: str = "RGB", **options) -> bytes:
    """Four colours in 128x192 pixels; the JPEGs of all orientations hold the same coefficients."""
    colours = np.array([[[250, 0, 0], [0, 250, 0], [0, 0, 250]], [[0, 0, 0], [90, 90, 90], [250, 250, 0]]])
    stored = np.repeat(np.repeat(colours.astype(np.uint8), 64, 0), 64, 1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(stored).convert(mode), kind, exif=exif, **options).getvalue()


UPRIGHT = {
    "JPEG": {"quality": 95},
    "progressive": {"quality": 95, "progressive": True},
    "MPO": {"kind": "MPO", "quality": 95},
    "gray": {"mode": "L"},
    "CMYK": {"mode": "CMYK"},
    "PNG": {"kind": "PNG"},
    "TIFF": {"kind": "TIFF"},
    "WEBP": {"kind": "WEBP", "lossless": True},
}
"""Images that simplejpeg decodes when they are streamed, the first four, and those left to Pillow."""


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("kind", UPRIGHT)
def test_exif_orientation_in_memory_and_streamed(kind, orientation):
    content, plain = (photo(value, **UPRIGHT[kind]) for value in (orientation, 1))
    expected = TURNED[orientation](decode.decode_pixels(io.BytesIO(plain)))
    np.testing.assert_array_equal(decode.decode_pixels(io.BytesIO(content)), expected)
    opened = decode.open_image(content)
    assert (opened.height, opened.width) == expected.shape[:2]
    np.testing.assert_array_equal(
        opened.decode(1, 1), TURNED[orientation](decode.open_image(plain).decode(1, 1))
    )
    np.testing.assert_allclose(
        opened.decode(1, 1), np.broadcast_to(expected, (*expected.shape[:2], 3)), atol=4
    )


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("factor", [2, 4, 8])
def test_exif_orientation_of_a_jpeg_that_is_decoded_smaller(factor, orientation):
    content, plain = photo(orientation, quality=95), photo(1, quality=95)
    found = decode.open_image(content).decode(128, 128 // factor)
    assert sorted(found.shape[:2]) == [128 // factor, 192 // factor]
    np.testing.assert_array_equal(
        found, TURNED[orientation](decode.open_image(plain).decode(128, 128 // factor))
    )


@pytest.mark.parametrize("orientation", TURNED)
def test_exif_orientation_of_a_jpeg_that_simplejpeg_refuses(orientation):
    content, plain = (
        photo(value, quality=95)[:-2] + b"\0\1\2\3" * 10 + b"\xff\xd9" for value in (orientation, 1)
    )
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(content)
    expected = TURNED[orientation](decode.decode_pixels(io.BytesIO(plain)))
    np.testing.assert_array_equal(decode.open_image(content).decode(1, 1), expected)


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def exif_segment(orientation: int) -> bytes:
    entry = b"\x12\x01\x03\0\x01\0\0\0" + bytes([orientation, 0, 0, 0])
    return segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry + bytes(4))


@pytest.mark.parametrize(
    ("inserted", "turned"),
    [
        (exif_segment(6), True),
        (b"\xff\xff\xff" + exif_segment(6), True),  # a marker may be preceded by fill bytes
        (segment(0xFE, b"a comment") + exif_segment(6), True),
        (segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'), True),
        (b"\xff\xff\xff", False),
        (segment(0xE1, b"Exif\0\0"), False),
        (segment(0xE1, b"Exif\0\0garbage"), False),
        (exif_segment(0), False),
        (exif_segment(9), False),
        (segment(0xFE, exif_segment(6)), False),  # within a comment
    ],
)
def test_the_orientation_is_found_where_pillow_finds_it(inserted, turned):
    content = encoded(Image.fromarray(RGB), "JPEG").getvalue()
    content = content[:2] + inserted + content[2:]
    shape = (4, 5, 3) if turned else (5, 4, 3)
    assert decode.decode_pixels(io.BytesIO(content)).shape == shape
    assert decode.open_image(content).decode(1, 1).shape == shape


def test_a_jpeg_without_exif_is_not_opened_by_pillow(monkeypatch):
    content = encoded(Image.fromarray(RGB), "JPEG").getvalue()
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow opened it"))
    assert decode.open_image(content).decode(1, 1).shape == RGB.shape


@pytest.mark.parametrize(
    "shape", [(20, 20, 3), (31, 20, 3), (20, 33, 3), (9, 40, 1), (7, 7, 3), (1, 1, 3), (1, 9, 1)]
)
@pytest.mark.parametrize("size", [7, 16])
def test_the_central_square_is_resized_by_antialiased_bicubic(shape, size):
    image = RNG.integers(64, 192, shape, np.uint8)  # what overshoots is not cut off
    found = decode.decode_pixels(encoded(Image.fromarray(image if shape[2] == 3 else image[..., 0])), size)
    assert found.shape == (size, size, shape[2])
    np.testing.assert_allclose(found, central_square(image, size), atol=1.2)


def test_much_smaller_images_are_still_antialiased():
    checks = np.indices((640, 640)).sum(0) % 2 * 255
    found = decode.decode_pixels(encoded(Image.fromarray(checks.astype(np.uint8))), 16)
    np.testing.assert_allclose(found, 127.5, atol=2)


def test_a_large_jpeg_is_decoded_small_without_a_visible_difference():
    x = np.linspace(0, 6, 800)
    waves = (127 + 120 * np.sin(x)[:, None, None] * np.cos(np.stack([x, x + 1, x + 2], -1))[None]).astype(
        np.uint8
    )
    stream = encoded(Image.fromarray(waves), "JPEG", quality=98)
    np.testing.assert_allclose(decode.decode_pixels(stream, 20), central_square(waves, 20), atol=5)


def test_a_very_long_image_costs_no_more_than_its_square():
    image = np.zeros((1, 50_000), np.uint8)
    assert decode.decode_pixels(encoded(Image.fromarray(image)), 64).shape == (64, 64, 1)


def test_only_the_first_frame_counts():
    frames = [Image.fromarray(np.full((4, 4, 3), value, np.uint8)) for value in (10, 200)]
    stream = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode.decode_pixels(stream), np.full((4, 4, 3), 10))


def test_the_content_counts_not_the_name_and_no_program_is_run():
    with pytest.raises(ValueError, match="it is empty"):
        decode.decode_pixels(io.BytesIO())
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n"
    with pytest.raises(ValueError, match="it is none of JPEG, PNG"):
        decode.decode_pixels(io.BytesIO(postscript))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_a_truncated_image_is_refused(kind):
    noise = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8))
    content = encoded(noise, kind).getvalue()
    with pytest.raises((OSError, ValueError, SyntaxError, EOFError)):
        decode.decode_pixels(io.BytesIO(content[: len(content) // 2]))
