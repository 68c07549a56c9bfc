"""IDX files: every type and rank round-trips; anything else is refused with the file's name."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from byov_jax.data.sources import idx

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def encoded(array: np.ndarray) -> bytes:
    """IDX bytes of `array`, written from the format's description."""
    codes = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, codes[array.dtype.name], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def read(tmp_path):
    def read_bytes(content: bytes):
        path = tmp_path / "some-images.gz"
        path.write_bytes(content)
        return idx.read(path)

    return read_bytes


@settings(max_examples=60, deadline=None)
@given(
    array=st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    ),
    zipped=st.booleans(),
)
def test_every_type_and_rank_round_trips(tmp_path_factory, array, zipped):
    path = tmp_path_factory.mktemp("idx") / "array"
    path.write_bytes(gzip.compress(encoded(array)) if zipped else encoded(array))
    found = idx.read(str(path))
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, array)


def test_every_proper_prefix_is_refused(read):
    for content in (encoded(IMAGES), gzip.compress(encoded(IMAGES))):
        for length in range(len(content)):
            with pytest.raises(ValueError, match=r"some-images\.gz: "):
                read(content[:length])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (encoded(IMAGES) + b"x", "trailing bytes"),
        (gzip.compress(encoded(IMAGES) + b"x"), "trailing bytes"),
        (gzip.compress(encoded(IMAGES)) * 2, "trailing bytes"),
        (gzip.compress(encoded(IMAGES)) + b"x", "gzip"),
        (b"\1\0\x08\1" + bytes(8), "neither an IDX file nor a gzipped one"),
        (b"\0\0\x0a\1" + bytes(8), "neither an IDX file nor a gzipped one"),
        (b"<!DOCTYPE html>", "neither an IDX file nor a gzipped one: it starts with b'<!DO'"),
        (gzip.compress(b"hello world"), "neither an IDX file nor a gzipped one"),
        (b"\0\0\x08\xff" + bytes(4 * 255), "255 dimensions"),
        (encoded(IMAGES)[:-1], r"needs 24 bytes, the file has 23"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_a_damaged_file_is_named_with_its_problem(read, content, problem):
    with pytest.raises(ValueError, match=rf"some-images\.gz: .*{problem}"):
        read(content)


def test_a_flipped_byte_in_a_gzip_file_is_noticed(read):
    content = bytearray(gzip.compress(encoded(IMAGES)))
    content[-8] ^= 1  # its checksum
    with pytest.raises(ValueError, match="CRC"):
        read(bytes(content))


def test_the_header_bounds_the_memory_whatever_the_file_expands_to(read):
    bomb = gzip.compress(encoded(IMAGES) + bytes(1 << 26))
    claim = encoded(IMAGES)[:4] + b"\xff" * 12 + bytes(100)
    for content, problem in ((bomb, "trailing"), (claim, "truncated")):
        tracemalloc.start()
        with pytest.raises(ValueError, match=problem):
            read(content)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
        tracemalloc.stop()


def test_a_missing_file_is_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        idx.read(tmp_path / "nothing-here")
