"""Barrier for background threads of several processes that does not wait for a process that has failed."""

import time
from typing import Any

_POLL_SECONDS = 0.05


class Barrier:
    """Synchronizes a task that all processes repeat, each in a thread of its own.

    JAX's own barrier waits for a process that failed until the timeout. Here that process calls `abort`, and
    `wait` raises in the others at once.
    """

    def __init__(self, client: Any, process: int, processes: int) -> None:
        """`client` is that of JAX's coordination service; None for one process, which never waits."""
        self._client, self._process, self._processes = client, process, processes
        self._round = 0

    def start(self) -> None:
        """Start the next round; all processes start the same rounds in the same order."""
        self._round += 1
        if self._client is not None and self._process == 0 and self._round > 2:
            # A process that starts a round has finished the previous one: none waits for the one before.
            self._client.key_value_delete(_prefix(self._round - 2))

    def wait(self, *, key: str, timeout_ms: int) -> None:
        """Wait until all processes have reached `key`; a RuntimeError if one of them aborted this round."""
        if self._client is None:
            return
        deadline = time.monotonic() + timeout_ms / 1000
        arrived, aborted = (_prefix(self._round, name) for name in (key, "aborted"))
        self._client.key_value_set(f"{arrived}{self._process}", "arrived")
        while len(self._client.key_value_dir_get(arrived)) < self._processes:
            for name, reason in self._client.key_value_dir_get(aborted):
                raise RuntimeError(f"process {name.rpartition('/')[2]}: {reason}")
            if time.monotonic() > deadline:
                raise TimeoutError("another process does not answer")
            time.sleep(_POLL_SECONDS)

    def abort(self, reason: str) -> None:
        """Mark this process as failed in the current round, so that no other waits for it."""
        if self._client is not None:
            aborted = _prefix(self._round, "aborted")
            self._client.key_value_set(f"{aborted}{self._process}", reason, allow_overwrite=True)


def _prefix(number: int, name: str = "") -> str:
    return f"byov_jax/barrier/{number}/{name}/" if name else f"byov_jax/barrier/{number}/"
