"""Random access to byte ranges of large files, such as the members of a tar file."""

import os
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class ByteRange(NamedTuple):
    """`size` bytes from `offset` on, in the file with index `file`."""

    file: int
    offset: int
    size: int


class ByteRanges:
    """Many byte ranges of a few files, 16 bytes of memory each. Thread-safe and picklable."""

    def __init__(self, files: list[str], ranges: Iterable[ByteRange]) -> None:
        index = np.array([*ranges], np.int64).reshape(-1, 3)
        self.files = files
        self._file, self._size = index[:, 0].astype(np.int32), index[:, 2].astype(np.int32)
        self._offset = index[:, 1].copy()
        self._descriptors: dict[int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._file)

    def __getitem__(self, i: int) -> bytes:
        size = int(self._size[i])
        data = os.pread(self._descriptor(int(self._file[i])), size, int(self._offset[i]))
        if len(data) < size:
            raise ValueError(f"{self.files[self._file[i]]} is truncated")
        return data

    def _descriptor(self, file: int) -> int:
        """Return the file's descriptor, opened on first use."""
        with self._lock:
            if file not in self._descriptors:
                self._descriptors[file] = os.open(self.files[file], os.O_RDONLY)
            return self._descriptors[file]

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_descriptors", {}).values():
            os.close(descriptor)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_descriptors", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _descriptors={}, _lock=threading.Lock())
