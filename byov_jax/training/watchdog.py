"""Says what a run is waiting for, when it has been waiting for too long."""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class Watchdog:
    """A thread that looks whether the run goes on; `now` tells it what the run is doing.

    It warns when one thing takes longer than `seconds`, and again after every doubling of that time.
    """

    def __init__(self, seconds: float, warn: Callable[[str], None]) -> None:
        """`seconds` is 0 for no watch at all."""
        self._seconds, self._warn = seconds, warn
        self._doing: tuple[str | None, float] = (None, 0.0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def now(self, doing: str | None) -> None:
        """From now on the run is doing this; None for what may take as long as it likes."""
        self._doing = (doing, time.monotonic())

    def __enter__(self) -> "Watchdog":
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._seconds:
            self._thread.join()

    def _watch(self) -> None:
        told: tuple[str | None, float] = (None, 0.0)
        limit = self._seconds
        while not self._end.wait(min(1.0, self._seconds / 4)):
            doing, since = current = self._doing
            if current != told:
                told, limit = current, self._seconds
            waited = time.monotonic() - since
            if doing is not None and waited > limit:
                self._warn(f"no progress for {waited:.0f} seconds: {doing}")
                while waited > limit:
                    limit *= 2
