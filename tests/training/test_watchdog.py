"""The watchdog warns of what a run waits for: not too early, not too often, never while compiling."""

import threading

import pytest

from byov_jax.training import watchdog
from byov_jax.training.watchdog import Watchdog

SECONDS = 0.02  # the thread looks four times as often


class Clock:
    """A clock that stands still until it is moved; it knows when it was looked at."""

    def __init__(self):
        self._now, self._looked = 0.0, threading.Semaphore(0)

    def monotonic(self):
        if threading.current_thread().name == "watchdog":
            self._looked.release()
        return self._now

    def move(self, seconds):
        """Moves it, and waits until the watchdog has seen it and has come by again."""
        self._now += seconds
        while self._looked.acquire(blocking=False):
            pass
        for _ in range(3):
            assert self._looked.acquire(timeout=60.0)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    return clock


def test_a_long_wait_causes_a_warning_and_another_after_every_doubling(clock):
    warnings = []
    with Watchdog(SECONDS, warnings.append) as dog:
        dog.expect("waiting for images")
        clock.move(0.9 * SECONDS)
        assert warnings == []
        clock.move(0.2 * SECONDS)  # 1.1 times the limit
        assert warnings == ["no progress for 0 seconds: waiting for images"]
        clock.move(0.8 * SECONDS)  # 1.9
        assert len(warnings) == 1
        clock.move(0.2 * SECONDS)  # 2.1
        clock.move(1.8 * SECONDS)  # 3.9
        assert len(warnings) == 2
        clock.move(120.0)
        assert warnings[2:] == ["no progress for 120 seconds: waiting for images"]


def test_progress_within_the_limit_causes_no_warning(clock):
    warnings = []
    with Watchdog(SECONDS, warnings.append) as dog:
        for _ in range(5):
            dog.expect("computing a step")
            clock.move(0.9 * SECONDS)
        assert warnings == []
        dog.expect(None)
        clock.move(1e6)
        assert warnings == []
        dog.expect("waiting for images")
        clock.move(1.1 * SECONDS)
        dog.expect("computing a step")
        clock.move(1.1 * SECONDS)
        assert [text.split(": ")[1] for text in warnings] == ["waiting for images", "computing a step"]


def test_it_ends_with_the_run():
    with Watchdog(60.0, print):
        assert any(thread.name == "watchdog" for thread in threading.enumerate())
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())


def test_without_a_limit_there_is_none():
    with Watchdog(0.0, print) as dog:
        dog.expect("waiting for images")
        assert not any(thread.name == "watchdog" for thread in threading.enumerate())
