"""Run commands in processes of their own; several processes make one run."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGENET = ("-m", "experiments.imagenet")


def start(config, workdir, *flags, processes=1, devices=1, programs=None):
    """Start a training and return its processes, with `devices` devices each.

    `programs` are the arguments of Python in each process, by default those of the command.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [f"--config={config}", f"--workdir={workdir}", *flags]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    started = []
    for process, program in enumerate(programs or [IMAGENET] * processes):
        one = [f"--coordinator=127.0.0.1:{port}", f"--processes={processes}", f"--process={process}"]
        started.append(
            subprocess.Popen(
                [sys.executable, *program, *arguments, *(one if processes > 1 else [])],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return started


def wait(started, timeout=300):
    """Return the output of each process, and its exit code."""
    outputs = [process.communicate(timeout=timeout)[0] for process in started]
    return outputs, [process.returncode for process in started]


def train(config, workdir, *flags, processes=1, devices=1):
    """Train to the end and return the output of each process."""
    outputs, codes = wait(start(config, workdir, *flags, processes=processes, devices=devices))
    assert codes == [0] * processes, "\n".join(outputs)
    return outputs
