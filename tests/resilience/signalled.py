"""Train, and send this process SIGTERM in one phase of the training.

    python signalled.py PHASE ARGUMENTS

PHASE is one of `PHASES`, or "nothing" for the other processes of the run; ARGUMENTS are those of
byov imagenet.
"""

import functools
import signal
import sys

from byov_jax.checkpoints import checkpointer
from byov_jax.cli import imagenet
from byov_jax.training import monitor
from byov_jax.training import trainer as runs


def signalling(work, at=1):
    """The same function, which raises SIGTERM in this process when it is called for the `at`-th time."""
    calls = []

    @functools.wraps(work)
    def called(*arguments, **options):
        calls.append(None)
        if len(calls) == at:
            signal.raise_signal(signal.SIGTERM)
        return work(*arguments, **options)

    return called


def in_a_step(at):
    build = runs.build.runner

    def runner(*arguments, **options):
        built = build(*arguments, **options)
        built.step = signalling(built.step, at)
        return built

    runs.build.runner = runner


def evaluating():
    monitor.held_out = signalling(monitor.held_out)


def saving():
    checkpointer.CheckpointWriter.save = signalling(checkpointer.CheckpointWriter.save)


PHASES = {
    "evaluating before the first step": evaluating,
    "compiling": functools.partial(in_a_step, 1),
    "training": functools.partial(in_a_step, 3),
    "evaluating": evaluating,
    "saving": saving,
}

if __name__ == "__main__":
    phase, *arguments = sys.argv[1:]
    if phase != "nothing":
        PHASES[phase]()
    sys.exit(imagenet.main(arguments))
