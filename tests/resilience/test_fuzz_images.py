"""Thousands of damaged images of every format: each is read, or refused in one line, in little memory."""

import contextlib
import io
import signal
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from byov_jax.data.dataset import Record, read_image
from byov_jax.data.loading import crops, lazy, pipeline
from byov_jax.errors import ImageError

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow warns of damage that it can live with

RNG = np.random.default_rng(0)
SIZE = 16
CASES = 140
"""Of each kind of image; there are 16."""

BITS = crops.random_bits(0, 0, 0, 2)
COLOR = Image.fromarray(RNG.integers(0, 256, (21, 26, 3), np.uint8))
GRAY, OTHER = COLOR.convert("L"), COLOR.rotate(90)


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


KINDS = {
    "jpeg": encoded(COLOR, "JPEG"),
    "progressive": encoded(COLOR, "JPEG", progressive=True),
    "turned": encoded(COLOR, "JPEG", exif=turned()),
    "cmyk": encoded(COLOR.convert("CMYK"), "JPEG"),
    "png": encoded(COLOR, "PNG"),
    "palette": encoded(COLOR.quantize(16), "PNG"),
    "16 bits": encoded(Image.fromarray(RNG.integers(0, 65536, (21, 26), np.uint16)), "PNG"),
    "webp": encoded(COLOR, "WEBP"),
    "lossless webp": encoded(COLOR, "WEBP", lossless=True),
    "bmp": encoded(COLOR, "BMP"),
    "gif": encoded(COLOR, "GIF", save_all=True, append_images=[OTHER]),
    "tiff": encoded(COLOR, "TIFF"),
    "lzw tiff": encoded(COLOR, "TIFF", compression="tiff_lzw"),
    "jpeg tiff": encoded(COLOR, "TIFF", compression="jpeg"),
    "ppm": encoded(COLOR, "PPM"),
    "pgm": encoded(GRAY, "PPM"),
}


def flip(content, rng):
    found = bytearray(content)
    for place in rng.integers(0, len(found), rng.integers(1, 20)):
        found[place] ^= 1 << rng.integers(8)
    return bytes(found)


def flip_header(content, rng):
    head = min(64, len(content))
    return flip(content[:head], rng) + content[head:]


def truncate(content, rng):
    return content[: rng.integers(len(content))]


def splice(content, rng):
    other = KINDS[rng.choice(list(KINDS))]
    return content[: rng.integers(len(content))] + other[rng.integers(len(other)) :]


def overwrite(content, rng):
    start = rng.integers(len(content))
    length = rng.integers(1, 100)
    return content[:start] + rng.bytes(length) + content[start + length :]


def insert(content, rng):
    start = rng.integers(len(content))
    return content[:start] + rng.bytes(rng.integers(1, 100)) + content[start:]


def random_after_magic(content, rng):
    return content[: rng.integers(2, 40)] + rng.bytes(rng.integers(0, 2000))


DAMAGES = (flip, flip_header, truncate, splice, overwrite, insert, random_after_magic)


def damaged(kind):
    """Many damaged versions of an image, the same ones every time."""
    rng = np.random.default_rng(list(KINDS).index(kind))
    return [DAMAGES[i % len(DAMAGES)](KINDS[kind], rng) for i in range(CASES)]


class Contents:
    """A source of these contents."""

    def __init__(self, contents):
        self.contents, self.label = contents, np.arange(len(contents), dtype=np.int32)

    def __len__(self):
        return len(self.contents)

    def __getitem__(self, i):
        return Record(self.contents[i], i)

    def name(self, i):
        return f"image {i}"


@contextlib.contextmanager
def ends_within(seconds):
    """A hang fails the test instead of lasting forever."""

    def hung(number, frame):
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(source, i, work):
    """What comes of an image: an array, or the reason why not."""
    try:
        return read_image(source, i, work)[0]
    except ImageError as error:
        refusal = error
    assert str(refusal).startswith(f"image {i} cannot be read as an image (")
    assert len(str(refusal).splitlines()) == 1
    assert refusal.reason.strip()
    return refusal.reason


def test_undamaged_images_are_read():
    source = Contents(list(KINDS.values()))
    for i in range(len(source)):
        assert tried(source, i, lambda image: crops.central_crop(image, SIZE)).shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_image_is_read_or_refused_in_one_line(kind):
    source = Contents(damaged(kind))
    read, refused = 0, 0
    with ends_within(60):
        for i in range(CASES):
            found = tried(source, i, lambda image: crops.random_crops(image, BITS, SIZE))
            central = tried(source, i, lambda image: crops.central_crop(image, SIZE))
            assert isinstance(found, str) == isinstance(central, str)
            if isinstance(found, str):
                refused += 1
                continue
            read += 1
            assert (found.shape, found.dtype) == ((2, SIZE, SIZE, 3), np.uint8)
            assert (central.shape, central.dtype) == ((SIZE, SIZE, 3), np.uint8)
    assert read > 0
    assert refused > CASES // 10


def test_there_are_enough_of_them():
    assert len(KINDS) * CASES >= 2000


def test_batches_and_arrays_of_damaged_images():
    """Both are as large as they should be, whatever is wrong with the images in them."""
    source = Contents([content for kind in KINDS for content in damaged(kind)[:14]])
    rows = np.arange(len(source))
    with (
        ends_within(60),
        pipeline.batches(
            source,
            seed=0,
            batch_size=len(rows),
            rows=rows,
            first=0,
            steps=1,
            size=SIZE,
            crops=2,
            on_error="replace",
        ) as found,
    ):
        (batch,) = found
    assert batch.image.shape == (len(rows), 2, SIZE, SIZE, 3)
    images = lazy.LazyImages(source, SIZE, "replace")
    assert images[:].shape == images.shape
    assert set(images.unreadable.items()) == set(batch.unreadable)
    unread = [int(name.split()[1]) for name in images.unreadable]
    assert 0 < len(unread) < len(rows)
    assert (images[unread] == lazy.GRAY).all()
    assert set(batch.label) == set(rows) - set(
        unread
    )  # one epoch: what can be read is there, the rest is not


def with_size(kind, width, height):
    """An image of that kind whose header claims another size."""
    content = bytearray(KINDS[kind])
    if kind == "jpeg":
        place = content.index(b"\xff\xc0") + 5
        content[place : place + 4] = struct.pack(">HH", height, width)
    elif kind == "png":
        head = b"IHDR" + struct.pack(">II", width, height) + bytes(content[24:29])
        content[12:33] = head + struct.pack(">I", zlib.crc32(head))
    elif kind == "bmp":
        content[18:26] = struct.pack("<ii", width, height)
    elif kind == "gif":
        content[6:10] = struct.pack("<HH", width, height)
    elif kind == "ppm":
        content = bytearray(b"P6\n%d %d\n255\n" % (width, height)) + content[-100:]
    elif kind == "webp":
        place = content.index(b"\x9d\x01\x2a") + 3
        content[place : place + 4] = struct.pack("<HH", min(width, 16383), min(height, 16383))
    elif kind == "tiff":
        return tiff_of(width, height)
    return bytes(content)


def tiff_of(width, height):
    entries = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 200)]
    entries += [(277, 3, 1), (278, 4, height), (279, 4, width * height % 2**32)]
    directory = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + struct.pack("<I", 0)
    return head.ljust(200, b"\0") + bytes(100)


@contextlib.contextmanager
def memory():
    """A dict that gets the greatest number of MiB that the process took meanwhile, beyond what it had."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the greatest so far is forgotten
    except OSError:
        pytest.skip("this system does not tell how much memory was taken")
    before, found = _status("VmRSS"), {}
    yield found
    found["MiB"] = (_status("VmHWM") - before) / 1024


def _status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@pytest.mark.parametrize("kind", ["jpeg", "png", "bmp", "gif", "ppm", "webp", "tiff"])
def test_a_huge_image_is_refused_before_it_is_decoded(kind):
    source = Contents([with_size(kind, 30_000, 30_000)])
    start = time.process_time()
    with ends_within(60), memory() as taken:
        for work in (
            lambda image: crops.random_crops(image, BITS, SIZE),
            lambda image: crops.central_crop(image, SIZE),
        ):
            assert "exceeds limit of" in tried(source, 0, work)
    assert time.process_time() - start < 5
    assert taken["MiB"] < 200
