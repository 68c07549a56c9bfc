"""Where the records lie in TFRecord files, so that any of them can be read alone, without TensorFlow."""

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from byov_jax.data.sources.byte_ranges import Piece, Pieces

_HEADER, _FOOTER = struct.Struct("<QI"), 4  # length and its checksum before the record, the record's after it
_THREADS = 32  # that wait for disks


def index(files: Sequence[str], counts: Sequence[int]) -> Pieces:
    """Finds the records of all files by going from header to header.

    Args:
      files: their paths.
      counts: how many records each must hold.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(_records, range(len(files)), files))
    for file, records, count in zip(files, found, counts, strict=True):
        if len(records) != count:
            raise ValueError(f"{file} holds {len(records):,} records, {count:,} were written")
    return Pieces(list(files), (record for records in found for record in records))


def _records(number: int, file: str) -> list[Piece]:
    records, place = [], 0
    descriptor = os.open(file, os.O_RDONLY)
    try:
        end = os.fstat(descriptor).st_size
        while place < end:
            header = os.pread(descriptor, _HEADER.size, place)
            size = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else end
            start = place + _HEADER.size
            place = start + size + _FOOTER
            if place > end:
                raise ValueError(f"{file} is damaged: no record ends where the file does")
            records.append(Piece(number, start, size))
    finally:
        os.close(descriptor)
    return records
