"""A stalled training warns of what it is waiting for, and continues when the wait is over."""

import threading

import pytest
from trainings import DATA, assert_same, prepared

from byov_jax.training import callbacks
from byov_jax.training import trainer as runs

pytestmark = pytest.mark.usefixtures("quick")


class Stall:
    """Blocks until the expected warning arrives; a busy machine may cause further warnings."""

    def __init__(self, expected):
        self._expected, self._warned = expected, threading.Event()

    def warn(self, text):
        if text.endswith(f" seconds: {self._expected}"):
            self._warned.set()

    def wait(self):
        assert self._warned.wait(timeout=60.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "run"


STAGES = {
    "images": "waiting for images: reading, decoding or cropping them makes no progress",
    "step": "computing a step: a device or another process does not answer",
}


@pytest.mark.parametrize("stage", STAGES)
def test_the_stage_is_named(stage, whole, tmp_path, programs, monkeypatch):
    config, stall = prepared(watchdog=0.05), Stall(STAGES[stage])
    if not whole.exists():
        runs.train(config, DATA, whole)
    resident, runner = runs.feed.from_memory, programs(config)
    step, count = runner.step, []

    def stalling_images(*arguments, **options):
        for number, batch in enumerate(resident(*arguments, **options)):
            if number == 3:
                stall.wait()
            yield batch

    def stalling_step(*arguments):
        count.append(1)
        if len(count) == 4:
            stall.wait()
        return step(*arguments)

    if stage == "images":
        monkeypatch.setattr(runs.feed, "from_memory", stalling_images)
    else:
        monkeypatch.setattr(runner, "step", stalling_step)
    runs.train(config, DATA, tmp_path / "run", callbacks.Callbacks(warning=stall.warn))
    assert_same(tmp_path / "run", whole)
