"""Two thousand random corruptions of a run's files: an error of one line, or the right result."""

import contextlib
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from damaged_checkpoints import LIKE, STEPS, assert_is, contents, resume, seal, state

import byov_jax
from byov_jax import files
from byov_jax.checkpoints import checkpointer, integrity
from byov_jax.errors import RunError
from byov_jax.report import runs as reported
from byov_jax.training import metrics_log, run_directory

ODD = (
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b'""',
    b"[]",
    b"{}",
    b"[[[",
    b'"\\u0000"',
    b"9" * 30,
    b"\0",
)
"""What is put where it does not belong."""


def corrupt(content, rng):
    """The content with one to three random changes."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        start = rng.randrange(len(content) + 1)
        end = min(start + rng.choice((1, 1, 2, 8, 100)), len(content))
        change = rng.randrange(7)
        if change == 0 and content:
            content[start % len(content)] ^= 1 << rng.randrange(8)
        elif change == 1:
            content[start:end] = rng.randbytes(end - start)
        elif change == 2:
            del content[start:end]
        elif change == 3:
            content[start:start] = content[end : end + rng.randrange(200)]
        elif change == 4:
            del content[start:]
        elif change == 5:
            content[start:end] = rng.choice(ODD)
        else:
            content[start:start] = bytes([rng.randrange(256)] * rng.randrange(1, 50))
    return bytes(content)


@contextlib.contextmanager
def in_time(seconds=20.0):
    """Nothing may hang."""

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def read_or_refuse(read, place):
    """Returns `read(place)`, or None if that is a RunError of one line which names the place."""
    with in_time(), contextlib.suppress(RunError):
        return read(place)
    with pytest.raises(RunError) as error:
        read(place)
    assert "\n" not in str(error.value)
    assert str(place) in str(error.value)
    return None


@pytest.fixture
def run(untrained, tmp_path):
    return shutil.copytree(untrained, tmp_path / "run")


def test_configs(run):
    """800 of them; a config that is accepted is the one of the training."""
    rng, file = random.Random(0), run / run_directory.CONFIG
    good, accepted = file.read_bytes(), 0
    config = run_directory.read_config(run)
    for _ in range(800):
        file.write_bytes(corrupt(good, rng))
        model = read_or_refuse(byov_jax.load, run)
        if model is not None:
            assert run_directory.differences(model.config, config) == []
            accepted += 1
    assert accepted < 100


@pytest.mark.parametrize("name", [run_directory.METRICS, run_directory.POSTERIOR])
def test_metrics_files(run, name):
    """600 damaged files are read, reported and continued."""
    rng, file = random.Random(1), run / name
    good, kept = file.read_bytes(), 0
    for _ in range(300):
        damaged = corrupt(good, rng)
        file.write_bytes(damaged)
        found = read_or_refuse(files.read_jsonl, file)
        read_or_refuse(reported.read, run)
        warnings = []
        with in_time():
            metrics_log.MetricsLog(run, step=3, warn=warnings.append)
        assert bool(warnings) == (found is None)
        again = files.read_jsonl(file)
        assert all(line["step"] <= 3 for line in again)
        if found is None:
            (copied,) = run.glob(f"{name}.damaged*")
            assert copied.read_bytes() == damaged
            copied.unlink()
        else:
            assert again == [line for line in found if line["step"] <= 3]
            kept += len(again) == 4
    assert kept > 20


def test_results(run):
    """300 files of the evaluation and of the environment."""
    rng = random.Random(2)
    part = {"settings": {"model": 1, "data": 2, "seed": 0}, "numbers": {"ece": {"value": 0.25, "low": 0.1}}}
    whole = {"parts": {"calibration": part["numbers"]}, "settings": {"calibration": part["settings"]}}
    (run / run_directory.ARRAYS).mkdir()
    files.write_json(run / run_directory.EVALUATION, whole | {"baseline": None})
    files.write_json(run / run_directory.ARRAYS / "calibration.json", part)
    for name in (
        run_directory.EVALUATION,
        run_directory.ENVIRONMENT,
        f"{run_directory.ARRAYS}/calibration.json",
    ):
        good = (run / name).read_bytes()
        for _ in range(100):
            (run / name).write_bytes(corrupt(good, rng))
            read_or_refuse(reported.read, run)
        (run / name).write_bytes(good)
    assert reported.read(run).measured("calibration") == part["numbers"]


def test_checkpoints(saved, tmp_path):
    """200 damaged folders, restored by trainings and readers: always a saved state, bit for bit."""
    rng, used = random.Random(3), []
    for number in range(200):
        folder = shutil.copytree(saved, tmp_path / str(number))
        wrong = rng.choice(((9,), (9,), (9, 6), STEPS))
        for step in wrong:
            file = rng.choice(sorted(file for file in (folder / str(step)).rglob("*") if file.is_file()))
            good = file.read_bytes()
            file.write_bytes(corrupt(good, rng))
            if file.read_bytes() == good:
                file.unlink()
        before = contents(folder)
        found = read_or_refuse(lambda folder: checkpointer.restore_newest(folder, LIKE), folder)
        if number % 2:
            again = read_or_refuse(lambda folder: resume(folder)[0], folder)
            assert (again is None) == (found is None)
        assert contents(folder) == before
        expected = max(set(STEPS) - set(wrong), default=None)
        if expected is None:
            assert found is None
        else:
            assert_is(found, expected)
        used.append(expected)
        shutil.rmtree(folder)
    assert set(used) == {None, 3, 6}


def test_every_file_of_a_checkpoint(folder):
    """500 corruptions that the manifest must see."""
    rng, step = random.Random(4), folder / "9"
    files = sorted(file for file in step.rglob("*") if file.is_file())
    for number in range(500):
        file = files[number % len(files)]
        good = file.read_bytes()
        bad = corrupt(good, rng)
        file.write_bytes(bad)
        problem = integrity.find_damage(step)
        assert (problem is None) == (bad == good)
        assert problem is None or str(file.relative_to(step)) in problem
        file.write_bytes(good)
    assert integrity.find_damage(step) is None


def test_manifests_with_the_right_checksum(folder):
    """200 manifests that were changed and have a valid checksum of themselves."""
    rng, file = random.Random(5), folder / "9" / integrity.MANIFEST
    good = json.loads(file.read_text())
    for _ in range(200):
        body = copy.deepcopy(good)
        place = rng.choice((body, body["files"], rng.choice(list(body["files"].values()))))
        key = rng.choice(list(place))
        place[key] = json.loads(
            rng.choice(("null", "[]", "{}", "-1", '"../x"', "[[1]]", "1e9", '{"size": 3}'))
        )
        seal(file, body)
        problem = integrity.find_damage(folder / "9")
        assert problem is None or "\n" not in problem
        assert (problem is None) == (
            body["files"] == good["files"] and body["version"] == 1
        ) or key == "about"


@pytest.mark.slow
def test_orbax_alone(folder):
    """100 damaged states, read without checking the manifest: orbax refuses them, or reads them.

    In a separate process: after an error orbax leaves reads unfinished.
    """
    places = os.pathsep.join(str(Path(__file__).parents[up]) for up in (1, 2))
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": places}
    subprocess.run([sys.executable, __file__, str(folder)], env=environment, timeout=200, check=True)


def restore_damaged(folder):
    rng, step = random.Random(6), folder / "9"
    files = [file for file in sorted(step.rglob("*")) if file.is_file() and file.name != integrity.MANIFEST]
    refused = 0
    for _ in range(100):
        file = rng.choice(files)
        good = file.read_bytes()
        file.write_bytes(corrupt(good, rng))
        found = read_or_refuse(lambda folder: checkpointer.restore(folder, 9, LIKE), folder)
        if found is None:
            refused += 1
        else:
            assert jax.tree.map(lambda x: x.shape, found) == jax.tree.map(lambda x: x.shape, state(9))
        file.write_bytes(good)
    assert 10 < refused < 90
    assert_is(checkpointer.restore(folder, 9, LIKE), 9)


if __name__ == "__main__":
    restore_damaged(Path(sys.argv[1]))
    os._exit(0)  # a regular exit would report the unfinished reads
