"""Random access to the records of TFRecord files, without TensorFlow."""

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from byov_jax.data.sources.byte_ranges import ByteRange, ByteRanges

_HEADER, _FOOTER = struct.Struct("<QI"), 4  # length and its checksum before a record, the record's after it
_THREADS = 32  # more than cores: they wait for disks


def find_records(files: Sequence[str], counts: Sequence[int]) -> ByteRanges:
    """Locate the records of all files by reading their headers; file i must hold `counts[i]` records."""
    with ThreadPoolExecutor(_THREADS) as pool:
        ranges = list(pool.map(_records, range(len(files)), files))
    for file, records, count in zip(files, ranges, counts, strict=True):
        if len(records) != count:
            raise ValueError(f"{file} holds {len(records):,} records, expected {count:,}")
    return ByteRanges(list(files), (record for records in ranges for record in records))


def _records(number: int, file: str) -> list[ByteRange]:
    records, position = [], 0
    descriptor = os.open(file, os.O_RDONLY)
    try:
        end = os.fstat(descriptor).st_size
        while position < end:
            header = os.pread(descriptor, _HEADER.size, position)
            size = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else end
            start = position + _HEADER.size
            position = start + size + _FOOTER
            if position > end:
                raise ValueError(f"{file} is truncated or damaged: the last record is cut off")
            records.append(ByteRange(number, start, size))
    finally:
        os.close(descriptor)
    return records
