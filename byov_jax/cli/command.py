"""What all commands share: how they explain themselves, and how they end."""

import argparse
import sys
from collections.abc import Callable

from byov_jax.cli import signals
from byov_jax.errors import RunError, TrainingError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser of the command `python -m experiments.NAME`, whose help is its module's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def run(name: str, work: Callable[[], int | None], interrupted: str) -> int:
    """Does the work; returns the exit code. What went wrong is one line: a user's mistake has no traceback.

    Args:
      name: of the command.
      work: returns an exit code, or None for 0.
      interrupted: what to do after Ctrl-C or a signal, if the interruption itself does not say.
    """
    try:
        with signals.at_once():
            return work() or 0
    except TrainingError as error:
        print(f"{name}: {one_line(error)}", file=sys.stderr)
        return EXIT_FAILED
    except (RunError, OSError) as error:
        print(f"{name}: {one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except signals.Interrupted as error:
        print(f"{name}: {error if str(error) else interrupted}", file=sys.stderr)
        return error.exit_code


def one_line(error: Exception) -> str:
    """What an error says, without line breaks."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
