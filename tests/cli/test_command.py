"""Ctrl-C, SIGTERM and SIGUSR1 in every phase of a command: finished work is kept; exit codes."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import trainings
from trainings import DATA, assert_same

from byov_jax.checkpoints import checkpointer, store
from byov_jax.cli import command, evaluate, progress, train
from byov_jax.data.dataset import ArraySource
from byov_jax.data.loading import pipeline
from byov_jax.evaluation.suite.parts import PARTS, Part
from byov_jax.evaluation.suite.results import Result
from byov_jax.training import build, monitor, run_directory
from byov_jax.training.config import Config

ROOT = Path(__file__).parents[2]
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 138}
STEPS = 7


@pytest.fixture(scope="module")
def programs():
    return trainings.Programs()


@pytest.fixture
def quick(one_device, programs, monkeypatch):
    monkeypatch.setattr(build, "runner", programs)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The tiny config in a file, beside its data."""
    root = tmp_path_factory.mktemp("config")
    parts = {"train": DATA.train, "test": DATA.test}
    np.savez(
        root / "data.npz",
        **{f"{name}_{field}": getattr(part, field) for name, part in parts.items() for field in part._fields},
    )
    values = trainings.CONFIG | {"data": {"source": str(root / "data.npz")}, "save_every": 8}
    (root / "config.py").write_text(f"def get_config(variant=''):\n    return {values!r}\n")
    return root / "config.py"


def start(config, workdir):
    return train.main([f"--config={config}", f"--workdir={workdir}"])


@pytest.fixture(scope="module")
def finished(config, programs, tmp_path_factory):
    """A run without any signal."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        devices = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda: devices)
        patch.setattr(jax, "device_count", lambda: 1)
        patch.setattr(build, "runner", programs)
        assert start(config, workdir) == 0
    return workdir


def signal_at(patch, place, name, *numbers, at=1):
    """Send signals to this process at the `at`-th call of a function."""
    work, calls = getattr(place, name), []

    def signalling(*arguments, **options):
        calls.append(name)
        if len(calls) == at:
            for number in numbers:
                signal.raise_signal(number)
        return work(*arguments, **options)

    patch.setattr(place, name, signalling)


PHASES = {
    "the first evaluation on held-out images": ((monitor, "held_out"), 1, 1),
    "compiling": (("step",), 1, 1),
    "training": (("step",), 3, 3),
    "an evaluation on held-out images": ((monitor, "held_out"), 2, 3),
    "saving": ((checkpointer.CheckpointWriter, "save"), 1, 4),
}
"""The function in which a signal arrives, in which call of it, and the step that is saved."""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("number", "phase"),
    [
        *((signal.SIGTERM, phase) for phase in PHASES),
        (signal.SIGINT, "training"),
        (signal.SIGUSR1, "training"),
        (signal.SIGUSR1, "an evaluation on held-out images"),
    ],
)
def test_a_training_is_saved_and_resumed(number, phase, config, finished, programs, tmp_path, capsys):
    workdir, (place, at, step) = tmp_path / "run", PHASES[phase]
    with pytest.MonkeyPatch.context() as patch:
        target = place if len(place) == 2 else (programs(run_directory.read_config(finished)), *place)
        signal_at(patch, *target, number, at=at)
        assert start(config, workdir) == CODES[number]
    shown = capsys.readouterr()
    assert "stopping after this step; Ctrl-C again stops at once" in shown.err
    last = shown.err.splitlines()[-1]
    assert last == f"train: {workdir}: saved at step {step} of 7; the same command resumes it"
    assert store.latest_step(workdir / run_directory.CHECKPOINTS) == step
    assert start(config, workdir) == 0
    assert f"resuming after step {step}" in capsys.readouterr().out
    assert_same(workdir, finished)


@pytest.mark.usefixtures("quick")
def test_a_second_signal_stops_at_once(config, finished, programs, tmp_path, capsys):
    workdir = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        runner = programs(run_directory.read_config(finished))
        signal_at(patch, runner, "step", signal.SIGTERM, signal.SIGINT, at=6)
        assert start(config, workdir) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "train: stopped at once; the same command resumes from the last checkpoint"
    assert store.latest_step(workdir / run_directory.CHECKPOINTS) == 4
    assert start(config, workdir) == 0
    assert_same(workdir, finished)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", CODES)
def test_before_a_training_there_is_nothing_to_save(number, config, tmp_path, monkeypatch, capsys):
    signal_at(monkeypatch, build, "dataset", number)
    assert start(config, tmp_path / "run") == CODES[number]
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("quick")
def test_a_signal_after_the_last_step_changes_nothing(config, finished, programs, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, programs(run_directory.read_config(finished)), "step", signal.SIGTERM, at=STEPS)
        assert start(config, tmp_path / "run") == 0
    assert_same(tmp_path / "run", finished)


@pytest.mark.usefixtures("quick")
def test_a_finished_part_of_an_evaluation_is_kept(finished, monkeypatch, capsys):
    arguments = [f"--run={finished}", "--only=layers,latent"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PARTS, "latent", Part(lambda context: signal.raise_signal(signal.SIGTERM)))
        assert evaluate.main(arguments) == 143
    error = capsys.readouterr().err
    assert (
        error.splitlines()[-1] == "evaluate: interrupted; finished parts are kept, run the same command again"
    )
    assert not (finished / run_directory.EVALUATION).exists()
    monkeypatch.setitem(PARTS, "layers", Part(pytest.fail))  # it is not measured again
    monkeypatch.setitem(PARTS, "latent", Part(lambda context: Result({"there": 1}, {})))
    assert evaluate.main(arguments) == 0
    assert "layers was measured before" in capsys.readouterr().out
    assert set(json.loads((finished / run_directory.EVALUATION).read_text())["parts"]) == {"layers", "latent"}


@pytest.mark.parametrize("number", CODES)
def test_other_commands_stop_at_once(number, capsys):
    assert command.run("cook", lambda: signal.raise_signal(number), "the soup is kept") == CODES[number]
    assert capsys.readouterr().err == "cook: the soup is kept\n"


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in CODES]
    with pytest.raises(command.Interrupted), command.interrupt_on_signal():
        signal.raise_signal(signal.SIGUSR1)
    assert [signal.getsignal(number) for number in CODES] == before
    with progress.training("byov", 0, Config.parse({"steps": 9})) as callbacks:
        signal.raise_signal(signal.SIGINT)
        assert callbacks.stop() == signal.SIGINT
    assert [signal.getsignal(number) for number in CODES] == before


def test_workers_ignore_signals():
    """Schedulers signal all processes: without its images a training could not finish its step."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 20, 20, 3), np.uint8)
    images = ArraySource(pixels, np.zeros(32, np.int32), "noise")
    order = {"seed": 0, "batch_size": 8, "rows": np.arange(8), "first": 0, "steps": 40, "size": 8, "crops": 1}
    expected = list(pipeline.batches(images, **order))
    with pipeline.batches(images, workers=1, **order) as batches:
        found = [next(batches)]
        (worker,) = multiprocessing.active_children()
        for number in CODES:
            os.kill(worker.pid, number)
        found += batches
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.image, other.image)


@pytest.mark.slow
def test_a_process_that_compiles(config, tmp_path):
    """A signal from outside, to a process that compiles."""
    workdir = tmp_path / "run"
    arguments = [f"--config={config}", f"--workdir={workdir}", "--config.steps=1000", "--config.save_every=0"]
    with subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (workdir / run_directory.METRICS).is_file():  # the line of step 0; then it compiles
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, shown = process.communicate(timeout=120)
    assert process.returncode == 143, shown
    reached = store.latest_step(workdir / run_directory.CHECKPOINTS)
    assert 1 <= reached < 1000
    assert f"saved at step {reached} of 1000; the same command resumes it" in shown
