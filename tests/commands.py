"""Commands in processes of their own, one or several that make one run."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


IMAGENET = ("-m", "experiments.imagenet")


def start(config, workdir, *flags, processes=1, devices=1, programs=None):
    """Starts a training in so many processes with so many devices each; returns the processes.

    `programs` are what Python is to run in each of them, if not the command.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [f"--config={config}", f"--workdir={workdir}", *flags]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    together = []
    for process, program in enumerate(programs or [IMAGENET] * processes):
        one = [f"--coordinator=127.0.0.1:{port}", f"--processes={processes}", f"--process={process}"]
        together.append(
            subprocess.Popen(
                [sys.executable, *program, *arguments, *(one if processes > 1 else [])],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return together


def wait(together, timeout=300):
    """What each of the processes has said, and its exit code."""
    said = [process.communicate(timeout=timeout)[0] for process in together]
    return said, [process.returncode for process in together]


def train(config, workdir, *flags, processes=1, devices=1):
    """Trains to the end; returns what each process has said."""
    said, codes = wait(start(config, workdir, *flags, processes=processes, devices=devices))
    assert codes == [0] * processes, "\n".join(said)
    return said
