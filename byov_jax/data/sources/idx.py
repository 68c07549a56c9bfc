"""IDX files, the format of MNIST and Fashion-MNIST, gzipped or plain."""

import gzip
import math
import os
import zlib
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from byov_jax.data.dataset import Dataset, from_arrays

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

_CHUNK = 1 << 20
_MAX_RANK = 64  # NumPy's own limit


def matches(folder: Path) -> bool:
    """Return whether the folder holds any of `FILES`, gzipped or not."""
    return any((folder / f"{name}{suffix}").is_file() for name in FILES for suffix in ("", ".gz"))


def load(folder: Path) -> Dataset:
    """Load a folder with the four `FILES` of MNIST-like data sets."""
    train_image, train_label, test_image, test_label = (read(find_file(folder, name)) for name in FILES)
    return from_arrays(folder, train_image[..., None], train_label, test_image[..., None], test_label)


def find_file(folder: Path, name: str) -> Path:
    """Return the path of the IDX file `name` in `folder`, gzipped or not."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder} has neither {name}.gz nor {name}")


def read(path: str | os.PathLike) -> Shaped[np.ndarray, "..."]:
    """Return the array in the IDX file at `path`, in native byte order.

    The header fixes how many bytes are read; a file with fewer or more is a ValueError, however well it
    compresses.
    """
    try:
        with open(path, "rb") as file:
            if file.peek(2)[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=file) as stream:
                    return _parse(stream)
            return _parse(file)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error


def _parse(stream: BufferedIOBase) -> np.ndarray:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in DTYPES:
        raise ValueError(f"neither an IDX file nor a gzipped one: it starts with {magic!r}")
    dtype, rank = np.dtype(DTYPES[magic[2]]), magic[3]
    if rank > _MAX_RANK:
        raise ValueError(f"the header declares {rank} dimensions, the limit is {_MAX_RANK}")
    shape = tuple(np.frombuffer(_read_exactly(stream, 4 * rank, "the header"), ">u4").tolist())
    size = math.prod(shape) * dtype.itemsize
    data = _read_exactly(stream, size, f"the {dtype.name} array {shape} of its header")
    if stream.read(1):
        raise ValueError(f"trailing bytes after the {dtype.name} array {shape} of its header")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _read_exactly(stream: BufferedIOBase, size: int, what: str) -> bytearray:
    """Read `size` bytes in chunks, so that memory grows with the file, not with the size in its header."""
    data = bytearray()
    while len(data) < size:
        chunk = stream.read(min(_CHUNK, size - len(data)))
        if not chunk:
            raise ValueError(f"truncated: {what} needs {size} bytes, the file has {len(data)}")
        data += chunk
    return data
