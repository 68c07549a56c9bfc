"""What all commands share: help, signals, exit codes, and errors of one line."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from byov_jax.errors import ConfigError, RunError, TrainingError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C; what schedulers and pre-empted machines send; Slurm's warning (--signal=USR1@120)."""


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `byov NAME`, with its module's docstring as help."""
    return argparse.ArgumentParser(
        prog=f"byov {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def run(name: str, work: Callable[[], int | None], interrupted: str) -> int:
    """Run a command and return its exit code; users' mistakes are one line without a traceback.

    Args:
      name: the command.
      work: returns an exit code, or None for 0.
      interrupted: printed after Ctrl-C or a signal, unless the interruption has its own text.
    """
    try:
        with interrupt_on_signal():
            return work() or 0
    except TrainingError as error:
        print(f"{name}: {one_line(error)}", file=sys.stderr)
        return EXIT_FAILED
    except (ConfigError, RunError, OSError) as error:
        print(f"{name}: {one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except Interrupted as error:
        print(f"{name}: {error if str(error) else interrupted}", file=sys.stderr)
        return error.exit_code


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


class Interrupted(KeyboardInterrupt):
    """A signal ended the command; the exit code is 128 plus its number, as in a shell."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.exit_code = 128 + number


@contextmanager
def interrupt_on_signal() -> Iterator[None]:
    """Raise `Interrupted` at any signal."""

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted(number)

    with _handled(interrupt):
        yield


@contextmanager
def stop_on_signal(say: Callable[[str], None]) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the signal received so far, 0 for none; a second signal interrupts.

    Args:
      say: called with a text at the first signal.
    """
    received = 0

    def stop(number: int, frame: Any) -> None:
        nonlocal received
        if received:
            raise Interrupted(number)
        received = number
        say("stopping after this step; Ctrl-C again stops at once")

    with _handled(stop):
        yield lambda: received


@contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
