"""Trains a run in one process after another, each of which kills itself (kill -9) at a chosen instant.

    python killed.py PLACE INSTANTS

PLACE becomes a folder with the run that was killed, `run`, and one that was not, `whole`. INSTANTS is a JSON
list of (kind, step): where the first process dies, the second and so on; one more trains to the end. What
became of each is printed as a line of JSON. Every process is a fork of this one, which has imported all that
is needed and never touched a device; programs are compiled by the first and kept.
"""

import functools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import jax
from trainings import DATA, prepared

from byov_jax import files
from byov_jax.checkpoints import checkpointer, integrity, store
from byov_jax.training import callbacks, monitor, run_directory
from byov_jax.training import trainer as runs

SAVE_EVERY = 4
CHANGES = {
    "steps": 48,
    "log_every": 1,
    "monitor_every": 3,
    "save_every": SAVE_EVERY,
    "keep": {"last": 2, "every": 10},
}


def die(*ignored, **also_ignored):
    """What no process can prevent."""
    os.kill(os.getpid(), signal.SIGKILL)


class Life:
    """A process until its death."""

    def __init__(self, kind, step, log):
        self.kind, self.step, self._log = kind, step, log

    def reach(self, step):
        """Called after every step; sets the trap for the instant when its step has come."""
        os.write(self._log, f"{step}\n".encode())
        if step == self.step:
            getattr(self, self.kind)()
        if self.kind == "somewhere" and step == self.step + 2:
            threading.Event().wait()  # only the clock knows when it dies, and it must not finish before

    def complain(self, text):
        """There is nothing to warn of: what was half-written is cleared away, not damaged."""
        raise AssertionError(text)

    def between_steps(self):
        die()

    def somewhere(self):
        """At an instant that depends on nothing but the clock."""
        seconds = 0.01 * (self.step % 7)
        threading.Thread(target=lambda: (time.sleep(seconds), die()), daemon=True).start()

    def while_evaluating(self):
        monitor.held_out = die

    def inside_a_line(self):
        def half(file, text):
            file.open("ab").write(text[: len(text) // 2])
            die()

        files.append = half

    def while_orbax_writes(self):
        checkpointer.CheckpointWriter._finish = die

    def before_the_manifest(self):
        integrity.write = die

    def inside_the_manifest(self):
        def half(file, text):
            file.with_name(f".{file.name}.1").write_text(text[:99])
            die()

        integrity.write_text = half

    def before_the_name(self):
        integrity.write = functools.partial(after, integrity.write)

    def before_old_ones_go(self):
        store.apply_retention = die

    def while_old_ones_go(self):
        def part(folder, **options):
            next(file for file in sorted(Path(folder).rglob("*")) if file.is_file()).unlink()
            die()

        store.shutil.rmtree = part


KINDS = [name for name, value in vars(Life).items() if callable(value) and name not in vars(object)]
KINDS = [name for name in KINDS if name not in ("__init__", "reach", "complain")]


def after(work, *arguments):
    work(*arguments)
    die()


def live(workdir, life):
    """A process that trains until it dies, or to the end."""
    listener = callbacks.Callbacks(step=life.reach, warning=life.complain)
    # Not `prepared`, which looks at the network: all of them but the first find the config.
    config = run_directory.read_config(workdir) if workdir.exists() else prepared(**CHANGES)
    assert runs.train(config, DATA, workdir, listener) == (CHANGES["steps"], 0)


def child(work):
    """How a process that does the work ends: its exit code, negative for a signal."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(place, instants):
    """All processes, one after another."""
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(place / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for name, kind, step in [("whole", "", 0), *(("run", *instant) for instant in instants), ("run", "", 0)]:
        with (place / "steps").open("wb+") as file:
            life = Life(kind, step, file.fileno())
            code = child(functools.partial(live, place / name, life))
            file.seek(0)
            steps = [int(line) for line in file.read().split()]
        folder = place / name / run_directory.CHECKPOINTS
        result = {"run": name, "kind": kind, "code": code, "first": min(steps, default=None)}
        result |= {"reached": max(steps, default=None), "saved": store.latest_step(folder)}
        result["left"] = sorted(entry.name for entry in folder.glob("*.*"))
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
