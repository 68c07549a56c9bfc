"""Two processes of one run: a signal to one stops and saves both; if one is killed, the other exits."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import trainings
from commands import start, train, wait
from trainings import DATA, assert_same

from byov_jax.checkpoints import store
from byov_jax.training import run_directory

HERE = Path(__file__).parent
STEPS = 60
HEARTBEAT = 10


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    """All trainings here are of one program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = tmp_path_factory.mktemp("config")
    parts = {"train": DATA.train, "test": DATA.test}
    np.savez(
        root / "data.npz",
        **{f"{name}_{field}": getattr(part, field) for name, part in parts.items() for field in part._fields},
    )
    values = trainings.CONFIG | {
        "data": {"source": str(root / "data.npz")},
        "steps": STEPS,
        "log_every": 5,
        "monitor_every": STEPS,
        "save_every": 2 * STEPS,
    }
    (root / "config.py").write_text(f"def get_config(variant=''):\n    return {values!r}\n")
    return root / "config.py"


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A run that nothing has ever happened to."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    train(config, workdir, processes=2)
    return workdir


def started(together, workdir, lines):
    """Waits until a run has written a number of lines."""
    metrics = workdir / run_directory.METRICS
    while not (metrics.is_file() and metrics.read_text().count("\n") >= lines):
        if any(process.poll() is not None for process in together):
            pytest.fail("\n".join(wait(together)[0]))
        time.sleep(0.01)


@pytest.mark.slow
def test_a_signal_to_one_of_two_saves_the_run(config, whole, tmp_path):
    stopped = tmp_path / "stopped"
    together = start(config, stopped, processes=2)
    started(together, stopped, 3)
    together[1].send_signal(signal.SIGTERM)
    said, codes = wait(together)
    if codes == [0, 0]:
        pytest.fail("the run was over before it could be interrupted: give it more steps")
    assert codes == [143, 143], "\n".join(said)
    reached = store.latest_step(stopped / run_directory.CHECKPOINTS)
    for text in said:
        assert f"saved at step {reached} of {STEPS}; the same command resumes it" in text
    first, _ = train(config, stopped, processes=2)
    assert f"resuming after step {reached}" in first
    assert_same(stopped, whole)


PHASES = [
    ("evaluating before the first step", 1, 3),
    ("compiling", 0, 6),
    ("training", 1, 11),
    ("evaluating", 1, 18),
    ("saving", 0, 22),
]
"""The phase of the signal, the process that receives it, and the step that both agree to save."""


@pytest.mark.slow
def test_a_signal_to_one_of_two_in_every_phase(config, tmp_path, monkeypatch):
    """One run, stopped again and again."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (HERE.parents[1], HERE.parent))))
    plan = ["--config.steps=25", "--config.log_every=1", "--config.monitor_every=8", "--config.save_every=20"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(config, whole, *plan, processes=2)
    before = 0
    for phase, process, saved in PHASES:
        programs = [(str(HERE / "signalled.py"), phase if one == process else "nothing") for one in range(2)]
        said, codes = wait(start(config, stopped, *plan, processes=2, programs=programs))
        assert codes == [143, 143], "\n".join(said)
        for one, text in enumerate(said):
            assert f"saved at step {saved} of 25; the same command resumes it" in text, phase
            assert ("stopping after this step" in text) == (one == process)
        assert (f"resuming after step {before}" in said[0]) == (before > 0)
        assert store.latest_step(stopped / run_directory.CHECKPOINTS) == saved
        before = saved
    train(config, stopped, *plan, processes=2)
    assert_same(stopped, whole)


@pytest.mark.slow
def test_a_full_disk_ends_both_in_the_same_way(config, whole, small_disk):
    workdir, filler = small_disk / "run", small_disk / "filler"
    filler.write_bytes(
        bytes(shutil.disk_usage(small_disk).free - 100_000)
    )  # enough for lines, not for a state
    said, codes = wait(start(config, workdir, processes=2))
    assert codes == [1, 1], "\n".join(said)
    for text in said:
        assert "Traceback" not in text
        assert text.rstrip().splitlines()[-1].endswith("; nothing was saved")
    assert "training continues, and tries again" in said[0]
    filler.unlink()
    train(config, workdir, processes=2)
    assert_same(workdir, whole)


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "number"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_if_one_dies_or_stands_still_the_other_ends_and_says_why(lost, number, config, tmp_path):
    workdir = tmp_path / "run"
    together = start(config, workdir, f"--heartbeat={HEARTBEAT}", processes=2)
    started(together, workdir, 3)
    together[lost].send_signal(number)
    other = together[1 - lost]
    said, _ = other.communicate(timeout=60)  # JAX's own patience is longer
    together[lost].kill()
    together[lost].communicate(timeout=120)
    assert other.returncode not in (0, 143)
    assert "another process does not answer" in said or "another task died" in said


@pytest.mark.slow
def test_an_image_that_one_of_two_cannot_read_ends_both(tmp_path):
    photos = trainings.write_photos(tmp_path / "photos")
    (photos / "train" / "a" / "5.jpg").write_bytes(b"broken")
    values = trainings.CONFIG | {
        "data": {"source": str(photos), "loader": "stream", "on_error": "raise"},
        "views": {"name": "imagenet", "size": 14},
        "monitor_images": 4,
    }
    (tmp_path / "config.py").write_text(f"def get_config(variant=''):\n    return {values!r}\n")
    said, codes = wait(start(tmp_path / "config.py", tmp_path / "run", processes=2), timeout=100)
    (reader,) = (process for process, text in enumerate(said) if "5.jpg cannot be read as an image" in text)
    assert codes[reader] == 2
    assert codes[1 - reader] != 0
    assert "another process does not answer" in said[1 - reader] or "another task died" in said[1 - reader]
