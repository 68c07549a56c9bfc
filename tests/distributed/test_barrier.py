"""Processes that wait for each other in the background, played by threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from byov_jax.distributed.barrier import Barrier


class Service:
    """What JAX's coordination service does with keys and values."""

    def __init__(self):
        self.values, self._lock = {}, threading.Lock()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._lock:
            if key in self.values and not allow_overwrite:
                raise ValueError(f"{key} is there already")
            self.values[key] = value

    def key_value_dir_get(self, place):
        with self._lock:
            return [(key, value) for key, value in self.values.items() if key.startswith(place)]

    def key_value_delete(self, place):
        with self._lock:
            self.values = {key: value for key, value in self.values.items() if not key.startswith(place)}


def meet(works):
    """Does each work in a thread with a meeting of its own; returns what became of each."""
    service = Service()
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [
            pool.submit(work, Barrier(service, process, len(works))) for process, work in enumerate(works)
        ]
    return service, [future.exception() or future.result() for future in futures]


def test_nobody_goes_on_before_all_have_come():
    begun = []

    def work(meeting):
        for number in range(5):
            meeting.begin()
            begun.append(number)
            meeting.arrive(key="written", timeout_ms=20_000)
            assert begun.count(number) == 3
            meeting.arrive(key="named", timeout_ms=20_000)
        return "done"

    service, ends = meet([work] * 3)
    assert ends == ["done"] * 3
    assert {key.split("/")[2] for key in service.values} == {"4", "5"}  # what is long over is forgotten


@pytest.mark.parametrize("lost", [0, 1])
def test_who_has_failed_is_not_waited_for(lost):
    def work(meeting):
        meeting.begin()
        if meeting._process == lost:
            meeting.leave("No space left on device")
            return
        with pytest.raises(RuntimeError, match=f"^process {lost}: No space left on device$"):
            meeting.arrive(key="written", timeout_ms=20_000)
        meeting.leave("as the other")
        return

    def work_twice(meeting):
        work(meeting)
        meeting.begin()  # and the next time it is forgotten
        meeting.arrive(key="written", timeout_ms=20_000)
        return "done"

    assert meet([work_twice] * 2)[1] == ["done"] * 2


def test_who_is_silent_is_waited_for_as_long_as_was_said():
    _, ends = meet([lambda meeting: meeting.arrive(key="written", timeout_ms=10), lambda meeting: "asleep"])
    assert isinstance(ends[0], TimeoutError)


def test_one_process_never_waits():
    meeting = Barrier(None, 0, 1)
    meeting.begin()
    meeting.arrive(key="written", timeout_ms=1)
    meeting.leave("nobody listens")
