"""Join the processes of one run, before JAX initializes its devices, and end when one of them is lost."""

import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from byov_jax.errors import RunError, TrainingError

CLUSTERS = {
    "Slurm": lambda env: int(env.get("SLURM_NTASKS", "1")) > 1 and "SLURM_STEP_ID" in env,
    "Open MPI": lambda env: int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1,
    "a TPU pod": lambda env: "," in env.get("TPU_WORKER_HOSTNAMES", ""),
    "Kubernetes": lambda env: "KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env,
}
"""Whether the environment is that of one process of several, for each supported cluster."""

SHUTDOWN_TIMEOUT = 5.0
"""Seconds that a failed process waits for the others before it exits."""

_LOST_PROCESS = re.compile("(ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL|UNAVAILABLE|UNKNOWN): ")


def detect() -> str | None:
    """Return the name of the cluster on which this process is one of several, or None."""
    return next((name for name, matches in CLUSTERS.items() if matches(os.environ)), None)


def initialize(
    mode: str = "auto",
    *,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    heartbeat: int = 100,
) -> None:
    """Join the other processes of this run, if there are any.

    Args:
      mode: "on", "off", or "auto" to join on a detected cluster.
      coordinator: HOST:PORT of process 0; with `processes` and `process` it overrides `mode`.
      processes: how many there are.
      process: the index of this one.
      heartbeat: seconds of silence after which a process counts as lost.
    """
    if coordinator is None and not (mode == "on" or (mode == "auto" and detect() is not None)):
        return
    # JAX must not handle SIGTERM: the command does.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address=coordinator,
            num_processes=processes,
            process_id=process,
            heartbeat_timeout_seconds=heartbeat,
        )
    except (ValueError, RuntimeError) as error:
        raise RunError(
            f"cannot join the other processes on {detect() or 'this machine'} ({error}): give "
            "--coordinator=HOST:PORT, --processes=N and --process=I, or --distributed=off to run alone"
        ) from None


@contextmanager
def report_lost_process(workdir: Path) -> Iterator[None]:
    """Turn JAX's errors about a lost process into a TrainingError of one line."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if jax.process_count() == 1 or not _LOST_PROCESS.match(str(error)):
            raise
        reason = str(error).splitlines()[0][:200]
        raise TrainingError(
            f"{workdir}: another process does not answer ({reason}): restart all processes to resume "
            "from the last checkpoint"
        ) from None


def exit_code(work: Callable[[], int]) -> int:
    """Return the exit code of `work`; a process of several that failed exits here instead.

    At a normal exit JAX would wait for the other processes, which wait for this one.
    """
    try:
        code = work()
    except Exception:
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        code = 1
    if code and jax.distributed.is_initialized():
        shutdown = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        shutdown.start()
        shutdown.join(SHUTDOWN_TIMEOUT)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
