"""Several processes, one run: how they find each other, before JAX looks at its devices."""

import argparse
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from byov_jax.errors import RunError, TrainingError

CLUSTERS = {
    "Slurm": lambda env: int(env.get("SLURM_NTASKS", "1")) > 1 and "SLURM_STEP_ID" in env,
    "Open MPI": lambda env: int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1,
    "a TPU pod": lambda env: "," in env.get("TPU_WORKER_HOSTNAMES", ""),
    "Kubernetes": lambda env: "KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env,
}
"""How a process can tell that it is one of many."""

FAREWELL = 5.0
"""Seconds that a process which failed gives the others to fail as well."""

_LOST = re.compile("(ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL|UNAVAILABLE|UNKNOWN): ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of all commands that train."""
    group = parser.add_argument_group(
        "several processes", "found by themselves under Slurm, Open MPI, Kubernetes and on TPU pods"
    )
    add = group.add_argument
    add("--distributed", choices=("auto", "on", "off"), default="auto", help="join other processes (auto)")
    add("--coordinator", metavar="HOST:PORT", help="where process 0 listens, for processes started by hand")
    add("--processes", type=int, metavar="N", help="how many processes there are")
    add("--process", type=int, metavar="I", help="which of them this is, from 0")
    add(
        "--heartbeat",
        type=int,
        default=100,
        metavar="SECONDS",
        help="a process that is silent for so long is dead, and ends the others (100)",
    )
    parser.add_argument(
        "--compilation_cache", metavar="DIR", help="keep compiled programs there: the next start is faster"
    )


def initialize(arguments: argparse.Namespace) -> None:
    """Joins the other processes of this run, if there are any."""
    if arguments.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", arguments.compilation_cache)
    if arguments.heartbeat < 1:
        raise RunError(f"--heartbeat={arguments.heartbeat} must be at least 1 second")
    by_hand = (arguments.coordinator, arguments.processes, arguments.process)
    if any(value is not None for value in by_hand):
        if any(value is None for value in by_hand):
            raise RunError(
                "--coordinator=HOST:PORT, --processes=N and --process=I go together: give all three"
            )
        if not 0 <= arguments.process < arguments.processes:
            raise RunError(f"--process={arguments.process} must be from 0 to {arguments.processes - 1}")
        names = ("coordinator_address", "num_processes", "process_id")
        _initialize(arguments.heartbeat, **dict(zip(names, by_hand, strict=True)))
    elif arguments.distributed == "on" or (arguments.distributed == "auto" and detect() is not None):
        _initialize(arguments.heartbeat)


@contextmanager
def report_lost_process(workdir: Path) -> Iterator[None]:
    """Says in one line that another process is gone: without it, nothing can be computed any more."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if jax.process_count() == 1 or not _LOST.match(str(error)):
            raise
        reason = str(error).splitlines()[0][:200]
        raise TrainingError(
            f"{workdir}: another process does not answer ({reason}): start all of them again, and they go on "
            "from the last checkpoint"
        ) from None


def exit_code(work: Callable[[], int]) -> int:
    """The exit code of the work, of a process that may be one of many.

    One that fails alone must not wait: at its exit JAX waits for the others, and they wait for it.
    """
    try:
        code = work()
    except Exception:
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        code = 1
    if code and jax.distributed.is_initialized():
        farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        farewell.start()
        farewell.join(FAREWELL)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def detect() -> str | None:
    """The cluster that this process is one of many of."""
    return next((name for name, is_there in CLUSTERS.items() if is_there(os.environ)), None)


def _initialize(heartbeat: int, **by_hand: Any) -> None:
    # JAX would take SIGTERM for itself; what a signal does here, `signals` decides.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat, **by_hand)
    except (ValueError, RuntimeError) as error:
        where = detect() or "this machine"
        raise RunError(
            f"cannot join the other processes on {where} ({error}): give --coordinator=HOST:PORT, "
            "--processes=N and --process=I, or --distributed=off for this process alone"
        ) from None
