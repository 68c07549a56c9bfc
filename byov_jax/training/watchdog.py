"""Warn when a run makes no progress, and say what it is waiting for."""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class Watchdog:
    """A thread that warns when one activity takes longer than `seconds`, and after every doubling of that."""

    def __init__(self, seconds: float, warn: Callable[[str], None]) -> None:
        """Watch nothing if `seconds` is 0."""
        self._seconds, self._warn = seconds, warn
        self._activity: tuple[str | None, float] = (None, 0.0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def expect(self, activity: str | None) -> None:
        """Start timing an activity, named as the warning will name it; None for one without a limit."""
        self._activity = (activity, time.monotonic())

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
        previous: tuple[str | None, float] = (None, 0.0)
        limit = self._seconds
        while not self._end.wait(min(1.0, self._seconds / 4)):
            activity, since = current = self._activity
            if current != previous:
                previous, limit = current, self._seconds
            waited = time.monotonic() - since
            if activity is not None and waited > limit:
                self._warn(f"no progress for {waited:.0f} seconds: {activity}")
                while waited > limit:
                    limit *= 2
