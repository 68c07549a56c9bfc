"""A full or read-only disk ends a training only if it lasts until the last save."""

import contextlib
import errno
import os
import shutil
import threading
import time

import pytest
from trainings import DATA, assert_same, lines, prepared, state, stopping

from byov_jax import files
from byov_jax.checkpoints import checkpointer, integrity, store
from byov_jax.errors import TrainingError
from byov_jax.training import callbacks, recorder, run_directory
from byov_jax.training import trainer as runs

pytestmark = pytest.mark.usefixtures("quick")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
PLAN = {"save_every": 4, "keep": {"last": 2}}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(recorder, "PAUSES", (0.01, 0.01))


@pytest.fixture(scope="module")
def whole(programs, tmp_path_factory):
    """A run that always had room."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        devices = runs.jax.devices()[:1]
        patch.setattr(runs.jax, "devices", lambda: devices)
        patch.setattr(runs.build, "runner", programs)
        assert runs.train(prepared(**PLAN), DATA, workdir) == (7, 0)
    return workdir


class Disk:
    """A disk that is full for the states, or for the lines, of some steps."""

    def __init__(self, monkeypatch, place, name, full):
        self.warnings, self._state, self._line = [], 0, 0
        work, clear = getattr(place, name), store.clear_path

        def begin(folder, step):
            self._state = step
            clear(folder, step)

        def perhaps(*arguments, **options):
            in_background = threading.current_thread().name == "checkpoint"
            if name == "wait_until_finished":
                work(*arguments)
                if in_background and self._state in full:
                    raise FULL
                return None
            if (self._line if place is files else self._state) in full:
                raise FULL
            return work(*arguments, **options)

        monkeypatch.setattr(store, "clear_path", begin)
        monkeypatch.setattr(place, name, perhaps)

    def listener(self):
        return callbacks.Callbacks(step=self._reach, warning=self.warnings.append)

    def _reach(self, step):
        self._line = step


PLACES = {
    "before orbax begins": (checkpointer.ocp.AsyncCheckpointer, "save"),
    "while orbax writes": (checkpointer.ocp.AsyncCheckpointer, "wait_until_finished"),
    "in the manifest": (integrity, "write_text"),
    "where the step gets its name": (checkpointer.Path, "rename"),
}


@pytest.mark.parametrize("where", PLACES)
def test_it_goes_on_warns_and_tries_again(where, whole, tmp_path, monkeypatch):
    disk = Disk(monkeypatch, *PLACES[where], full=(4, 5))
    assert runs.train(prepared(**PLAN), DATA, tmp_path / "run", disk.listener()) == (7, 0)
    reason = "(No space left on device); training continues, and tries again"
    assert disk.warnings[0] == f"step 4 could not be saved {reason}"
    assert disk.warnings in ([disk.warnings[0]], [disk.warnings[0], f"step 5 could not be saved {reason}"])
    assert_same(tmp_path / "run", whole)
    folder = tmp_path / "run" / run_directory.CHECKPOINTS
    assert sorted(entry.name for entry in folder.iterdir()) == ["6", "7"]  # nothing half-written is left


def test_if_the_last_state_cannot_be_saved_the_run_has_failed(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, *PLACES["while orbax writes"], full=(4, 5, 6, 7))
    with pytest.raises(TrainingError, match=r"step 7 could not be saved \(No space.*; step 2 is safe$"):
        runs.train(prepared(**PLAN), DATA, tmp_path / "run", disk.listener())
    assert int(state(tmp_path / "run").step) == 2
    assert len(set(disk.warnings)) == len(disk.warnings) >= 2


def test_if_nothing_could_ever_be_saved_it_says_that(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, checkpointer.ocp.AsyncCheckpointer, "save", full=range(8))
    with pytest.raises(TrainingError, match=r"; nothing was saved$"):
        runs.train(prepared(**PLAN), DATA, tmp_path / "run", disk.listener())
    monkeypatch.undo()


def test_lines_wait_until_there_is_room(whole, tmp_path, monkeypatch):
    disk = Disk(monkeypatch, files, "append", full=(3, 4, 5))
    workdir = tmp_path / "run"
    assert runs.train(prepared(**PLAN), DATA, workdir, disk.listener()) == (7, 0)
    place = workdir / run_directory.METRICS
    text = f"{place} cannot be written (No space left on device); training continues, and tries again"
    assert disk.warnings == [text]
    assert_same(workdir, whole)


def test_lines_that_never_found_room_are_a_failure(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, files, "append", full=(6, 7))
    lost = r"the metrics of the last steps could not be written; step 7 is safe$"
    with pytest.raises(TrainingError, match=lost):
        runs.train(prepared(**PLAN), DATA, tmp_path / "run", disk.listener())
    assert int(state(tmp_path / "run").step) == 7
    assert [line["step"] for line in lines(tmp_path / "run")] == list(range(6))


def test_half_a_line_is_never_left(tmp_path, monkeypatch):
    """The disk takes the beginning of a line and refuses the rest."""
    file = tmp_path / "lines"
    files.append(file, b'{"step": 1}\n')
    taken = []

    class Reluctant:
        def __init__(self, stream):
            self._stream = stream

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._stream.close()

        def __getattr__(self, name):
            return getattr(self._stream, name)

        def write(self, text):
            taken.append(text)
            if len(taken) > 1:
                raise FULL
            return self._stream.write(text[:4])

    path_open = type(file).open
    monkeypatch.setattr(type(file), "open", lambda *given, **options: Reluctant(path_open(*given, **options)))
    with pytest.raises(OSError, match="No space"):
        files.append(file, b'{"step": 2}\n')
    monkeypatch.undo()
    assert taken == [b'{"step": 2}\n', b'ep": 2}\n']
    assert file.read_bytes() == b'{"step": 1}\n'


LEFT_BEHIND = pytest.mark.filterwarnings(
    "ignore:coroutine:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""When a write fails, orbax never awaits the others."""


@LEFT_BEHIND
def test_a_disk_that_is_really_full(whole, small_disk):
    filler, workdir, warnings, kept = small_disk / "filler", small_disk / "run", [], []

    def reach(step):
        if step == 3:
            while store.latest_step(workdir / run_directory.CHECKPOINTS) != 2:
                time.sleep(0.01)  # it is being written
            with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(4096))
        if step == 6:
            kept.append(store.steps(workdir / run_directory.CHECKPOINTS))
            filler.unlink()

    listener = callbacks.Callbacks(step=reach, warning=warnings.append)
    assert runs.train(prepared(**PLAN), DATA, workdir, listener) == (7, 0)
    assert kept == [[2]]
    assert any(text.startswith("step 4 could not be saved (") for text in warnings)
    assert any(".jsonl cannot be written (No space left on device)" in text for text in warnings)
    assert len(set(warnings)) == len(warnings)
    assert_same(workdir, whole)


@LEFT_BEHIND
def test_a_disk_that_stays_full(small_disk):
    config, workdir = prepared(**PLAN), small_disk / "run"
    runs.train(config, DATA, workdir, stopping(2))
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(bytes(free - 100_000))  # enough for lines, not for a state
    with pytest.raises(
        TrainingError,
        match=r"step 7 could not be saved \(it needs .* MiB, .* MiB are free\); nothing was saved$",
    ) as failed:
        runs.train(config, DATA, workdir)
    assert "\n" not in str(failed.value)
    assert int(state(workdir).step) == 2
    (small_disk / "filler").unlink()
    assert runs.train(config, DATA, workdir) == (7, 0)
