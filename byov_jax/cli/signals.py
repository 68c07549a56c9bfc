"""Ctrl-C and the signals of schedulers: a training stops after its step and is saved, all else at once.

SIGTERM is what schedulers and pre-empted machines send, SIGUSR1 is Slurm's warning (--signal=USR1@120).
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupted(KeyboardInterrupt):
    """A signal has ended the work; the exit code is 128 plus its number, as a shell has it."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.exit_code = 128 + number


@contextmanager
def at_once() -> Iterator[None]:
    """Every signal is an `Interrupted`."""

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted(number)

    with _handled(interrupt):
        yield


@contextmanager
def gently(say: Callable[[str], None]) -> Iterator[Callable[[], int]]:
    """Gives a function that tells which signal has come, by its number, 0 for none; a second one interrupts.

    Args:
      say: told that the first signal was heard.
    """
    asked = 0

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise Interrupted(number)
        asked = number
        say("stopping after this step; Ctrl-C again stops at once")

    with _handled(ask):
        yield lambda: asked


@contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
