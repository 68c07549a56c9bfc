"""Barrier between processes, simulated by threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from byov_jax.distributed.barrier import Barrier


class Client:
    """The key-value operations of JAX's coordination service."""

    def __init__(self):
        self.values, self._lock = {}, threading.Lock()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._lock:
            if key in self.values and not allow_overwrite:
                raise ValueError(f"{key} exists already")
            self.values[key] = value

    def key_value_dir_get(self, prefix):
        with self._lock:
            return [(key, value) for key, value in self.values.items() if key.startswith(prefix)]

    def key_value_delete(self, prefix):
        with self._lock:
            self.values = {key: value for key, value in self.values.items() if not key.startswith(prefix)}


def run(tasks):
    """Run each task in a thread with its own barrier; return the client, and each result or exception."""
    client = Client()
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures = [
            pool.submit(task, Barrier(client, process, len(tasks))) for process, task in enumerate(tasks)
        ]
    return client, [future.exception() or future.result() for future in futures]


def test_wait_returns_once_all_processes_have_arrived():
    started = []

    def task(barrier):
        for number in range(5):
            barrier.start()
            started.append(number)
            barrier.wait(key="written", timeout_ms=20_000)
            assert started.count(number) == 3
            barrier.wait(key="named", timeout_ms=20_000)
        return "done"

    client, results = run([task] * 3)
    assert results == ["done"] * 3
    assert {key.split("/")[2] for key in client.values} == {"4", "5"}  # older rounds are deleted


@pytest.mark.parametrize("failed", [0, 1])
def test_wait_raises_if_another_process_aborts(failed):
    def task(barrier):
        barrier.start()
        if barrier._process == failed:
            barrier.abort("No space left on device")
            return
        with pytest.raises(RuntimeError, match=f"^process {failed}: No space left on device$"):
            barrier.wait(key="written", timeout_ms=20_000)
        barrier.abort("as the other")
        return

    def two_rounds(barrier):
        task(barrier)
        barrier.start()  # an abort ends one round only
        barrier.wait(key="written", timeout_ms=20_000)
        return "done"

    assert run([two_rounds] * 2)[1] == ["done"] * 2


def test_wait_times_out_if_another_process_is_silent():
    _, results = run([lambda barrier: barrier.wait(key="written", timeout_ms=10), lambda barrier: "silent"])
    assert isinstance(results[0], TimeoutError)


def test_one_process_never_waits():
    barrier = Barrier(None, 0, 1)
    barrier.start()
    barrier.wait(key="written", timeout_ms=1)
    barrier.abort("no effect")
