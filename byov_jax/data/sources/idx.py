"""Reads IDX files, the format of MNIST and Fashion-MNIST, gzipped or plain."""

import gzip
import math
import os
import zlib
from io import BufferedIOBase

import numpy as np
from jaxtyping import Shaped

DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

_CHUNK = 1 << 20
_MAX_RANK = 64  # NumPy's own limit


def read(path: str | os.PathLike) -> Shaped[np.ndarray, "..."]:
    """The array in the IDX file at `path`, in native byte order.

    The header fixes how many bytes are read; a file that holds fewer or more is a ValueError, whatever
    it was compressed to.
    """
    try:
        with open(path, "rb") as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            if zipped:
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
        raise ValueError(f"the header names {rank} dimensions, at most {_MAX_RANK} are possible")
    shape = tuple(np.frombuffer(_exactly(stream, 4 * rank, "the header"), ">u4").tolist())
    size = math.prod(shape) * dtype.itemsize
    data = _exactly(stream, size, f"the {dtype.name} array {shape} of its header")
    if stream.read(1):
        raise ValueError(f"trailing bytes after the {dtype.name} array {shape} of its header")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _exactly(stream: BufferedIOBase, size: int, what: str) -> bytearray:
    """`size` bytes, in pieces: memory grows with what the file holds, not with what its header claims."""
    data = bytearray()
    while len(data) < size:
        piece = stream.read(min(_CHUNK, size - len(data)))
        if not piece:
            raise ValueError(f"truncated: {what} needs {size} bytes, the file has {len(data)}")
        data += piece
    return data
