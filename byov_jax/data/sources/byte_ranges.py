"""Parts of large files, such as the images in a tar file: an index in memory, bytes read when asked for."""

import os
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class Piece(NamedTuple):
    """Where some bytes lie: in which of the files, from where on, and how many."""

    file: int
    offset: int
    size: int


class Pieces:
    """Many pieces of a few files, 16 bytes of memory each. Reading is safe in threads and other processes."""

    def __init__(self, files: list[str], pieces: Iterable[Piece]) -> None:
        index = np.array([*pieces], np.int64).reshape(-1, 3)
        self.files = files
        self._file, self._size = index[:, 0].astype(np.int32), index[:, 2].astype(np.int32)
        self._offset = index[:, 1].copy()
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._file)

    def __getitem__(self, i: int) -> bytes:
        size = int(self._size[i])
        found = os.pread(self._descriptor(int(self._file[i])), size, int(self._offset[i]))
        if len(found) < size:
            raise ValueError(f"{self.files[self._file[i]]} ends too early")
        return found

    def _descriptor(self, file: int) -> int:
        """The file, opened if this is the first piece of it."""
        with self._lock:
            if file not in self._open:
                self._open[file] = os.open(self.files[file], os.O_RDONLY)
            return self._open[file]

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_open", {}).values():
            os.close(descriptor)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_open", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _open={}, _lock=threading.Lock())
