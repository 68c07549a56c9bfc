"""A training that was interrupted, wherever and however often, ends with the bits of one that was not."""

import threading

import jax
import pytest
import trainings
from trainings import DATA, assert_same, lines, prepared, state, stopping

from byov_jax.checkpoints import checkpointer, integrity, store
from byov_jax.data import registry
from byov_jax.training import callbacks, run_directory
from byov_jax.training import trainer as runs

pytestmark = pytest.mark.usefixtures("quick")

VARIANTS = {
    "standard": {"prior": "standard"},
    "teacher_mean, accumulated": {"prior": "teacher_mean", "accumulate": 2},
    "teacher_moments": {"prior": "teacher_moments"},
}
"""All of them with drop path, batch norm, an online probe and schedules."""

LAST, EPOCH = 7, 3
PLAN = {"method": "byov", "steps": LAST, "save_every": 8, "monitor_every": 3}


class Crash(Exception):
    """The process is gone: nothing more is saved."""


def crashing(after):
    """A listener with which a training ends like one that was killed after a step."""

    def step(number):
        if number == after:
            raise Crash

    return callbacks.Callbacks(step=step)


def interrupt(config, data, workdir, listener):
    """Trains until the listener ends it."""
    try:
        reached = runs.train(config, data, workdir, listener)
    except Crash:
        return
    assert reached.step < LAST


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photographs of three classes, in a folder, which are decoded and cropped as they are needed."""
    return trainings.write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def whole(programs, photos, tmp_path_factory):
    """A function that gives config, data and an uninterrupted run of a variant, trained once."""
    found = {}

    def of(variant):
        if variant not in found:
            data, changes = DATA, PLAN | VARIANTS.get(variant, {})
            if variant == "stream":
                section = {"source": str(photos), "loader": "stream", "workers": 0}
                data = registry.load_dataset(str(photos), loader="stream", size=14)
                changes |= {"data": section, "views": {"name": "small_color", "size": 14}}
            config = prepared(data, **changes)
            workdir = tmp_path_factory.mktemp("whole") / variant
            assert runs.train(config, data, workdir) == (LAST, 0)
            found[variant] = config, data, workdir
        return found[variant]

    return of


@pytest.mark.parametrize("every", [1, 2, 3, 4, 5])
def test_a_kill_costs_no_more_than_the_interval(every, tmp_path, monkeypatch):
    """On the slowest disk there can be: no state is safe before somebody waits for it."""
    waiting, write, wait = threading.Event(), integrity.write, checkpointer.CheckpointWriter.wait
    folder, at_risk = tmp_path / "run" / run_directory.CHECKPOINTS, []

    def slow(*arguments):
        assert waiting.wait(60)
        write(*arguments)

    def waited(writer):
        waiting.set()
        wait(writer)
        waiting.clear()

    monkeypatch.setattr(integrity, "write", slow)
    monkeypatch.setattr(checkpointer.CheckpointWriter, "wait", waited)
    listener = callbacks.Callbacks(step=lambda step: at_risk.append(step - (store.latest_step(folder) or 0)))
    config = prepared(save_every=every, keep={"last": 9, "every": 0})
    assert runs.train(config, DATA, tmp_path / "run", listener) == (LAST, 0)
    assert max(at_risk) == every
    assert store.steps(folder) == [s for s in range(1, LAST + 1) if s % every in (0, every // 2) or s == LAST]


INTERRUPTIONS = {
    "before the first save": crashing(2),
    "in an epoch": stopping(5),
    "after an epoch": stopping(2 * EPOCH),
    "right after a save": stopping(4),
}


@pytest.mark.parametrize("where", INTERRUPTIONS)
def test_one_interruption(where, whole, tmp_path):
    config, data, expected = whole("teacher_moments")
    workdir = tmp_path / "run"
    interrupt(config, data, workdir, INTERRUPTIONS[where])
    assert runs.train(config, data, workdir) == (LAST, 0)
    assert_same(workdir, expected)


@pytest.mark.parametrize("variant", ["standard", "teacher_mean, accumulated", "stream"])
def test_many_interruptions(variant, whole, tmp_path):
    config, data, expected = whole(variant)
    workdir = tmp_path / "run"
    for listener in (crashing(2), stopping(EPOCH), stopping(4), crashing(6), stopping(5)):
        interrupt(config, data, workdir, listener)
    assert store.steps(workdir / run_directory.CHECKPOINTS) == [3, 4, 5]
    assert runs.train(config, data, workdir) == (LAST, 0)
    assert_same(workdir, expected)


def test_the_bits_can_differ(whole, tmp_path):
    """Else the others show nothing: another seed is another training, in every part of the state."""
    config, data, expected = whole("teacher_moments")
    runs.train(config.updated({"seed": 1}), data, tmp_path / "run")
    assert lines(tmp_path / "run") != lines(expected)
    one, other = state(tmp_path / "run"), state(expected)
    for part in ("posterior", "stats", "teacher", "prior", "optimizer", "online", "guard"):
        pairs = zip(jax.tree.leaves(getattr(one, part)), jax.tree.leaves(getattr(other, part)), strict=True)
        assert any(x.tobytes() != y.tobytes() for x, y in pairs), part
    assert trainings.CONFIG["encoder"]["drop_path"] > 0.0
