"""Background threads of several processes that wait for each other, but not for one that has failed."""

import time
from typing import Any

_PAUSE = 0.05
"""Seconds between two looks at who has come."""


class Barrier:
    """Work that all processes do together, again and again, each in a thread of its own.

    A barrier of JAX would wait for a process that failed until the time is up. Here it says so, by `leave`,
    and the others are told at once.
    """

    def __init__(self, client: Any, process: int, processes: int) -> None:
        """`client` is that of JAX's coordination service; None for one process, which never waits."""
        self._client, self._process, self._processes = client, process, processes
        self._number = 0

    def begin(self) -> None:
        """The next piece of work; all processes begin it, in the same order."""
        self._number += 1
        if self._client is not None and self._process == 0 and self._number > 2:
            # Whoever begins a piece has ended the one before, so nobody waits for the one before that.
            self._client.key_value_delete(self._place(self._number - 2))

    def arrive(self, *, key: str, timeout_ms: int) -> None:
        """Waits until all processes have come to `key`; a RuntimeError if one of them has left instead."""
        if self._client is None:
            return
        end = time.monotonic() + timeout_ms / 1000
        here, left = (self._place(self._number, part) for part in (key, "left"))
        self._client.key_value_set(f"{here}{self._process}", "here")
        while len(self._client.key_value_dir_get(here)) < self._processes:
            for name, reason in self._client.key_value_dir_get(left):
                raise RuntimeError(f"process {name.rpartition('/')[2]}: {reason}")
            if time.monotonic() > end:
                raise TimeoutError("another process does not answer")
            time.sleep(_PAUSE)

    def leave(self, reason: str) -> None:
        """This process has failed in the current piece of work: nobody shall wait for it."""
        if self._client is not None:
            left = self._place(self._number, "left")
            self._client.key_value_set(f"{left}{self._process}", reason, allow_overwrite=True)

    def _place(self, number: int, part: str = "") -> str:
        return f"byov_jax/meeting/{number}/{part}/" if part else f"byov_jax/meeting/{number}/"
