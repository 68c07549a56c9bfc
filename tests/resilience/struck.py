"""A training that gets a signal in the middle of something.

    python struck.py PHASE ARGUMENTS

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


def struck(work, at=1):
    """The same function, and a SIGTERM to this process when it is called for the so-manieth time."""
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
        built.step = struck(built.step, at)
        return built

    runs.build.runner = runner


def looking():
    monitor.held_out = struck(monitor.held_out)


def saving():
    checkpointer.CheckpointWriter.save = struck(checkpointer.CheckpointWriter.save)


PHASES = {
    "looking at images before the first step": looking,
    "compiling": functools.partial(in_a_step, 1),
    "training": functools.partial(in_a_step, 3),
    "looking at images": looking,
    "saving": saving,
}

if __name__ == "__main__":
    phase, *arguments = sys.argv[1:]
    if phase != "nothing":
        PHASES[phase]()
    sys.exit(imagenet.main(arguments))
