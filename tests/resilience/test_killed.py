"""kill -9 at 20 instants of one run: it resumes every time, and ends with the same bits."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trainings import assert_same

from byov_jax.checkpoints import store
from byov_jax.training import run_directory

sys.path.append(str(Path(__file__).parent))
import killed

HERE = Path(__file__).parent
SEED = 6


@pytest.mark.slow
def test_killed_twenty_times(tmp_path):
    instants = draw(20, random.Random(SEED))
    lives = run(tmp_path, instants)
    whole, *deaths, end = lives
    assert [life["code"] for life in deaths] == [-9] * 20
    assert (whole["code"], end["code"]) == (0, 0)
    saved = 0
    for life in (*deaths, end):
        assert life["first"] == saved + 1, life  # it went on from the newest state, with no help
        saved = life["saved"] or 0
        assert life["reached"] - saved <= killed.SAVE_EVERY, life  # whether it was saving or not
    assert_same(tmp_path / "run", tmp_path / "whole")
    for run_of in ("run", "whole"):
        folder = tmp_path / run_of / run_directory.CHECKPOINTS
        assert sorted(entry.name for entry in folder.iterdir()) == sorted(
            ["10", "20", "30", "40", "46", "48"]
        )
        assert store.latest_step(folder) == 48
    assert any("unfinished.orbax" in name for life in deaths for name in life["left"])
    assert any(name.endswith(".unfinished") for life in deaths for name in life["left"])
    assert any(name.endswith(".retired") for life in deaths for name in life["left"])


def draw(count, rng):
    """Kinds of instants, each at least once, some of them by the clock alone, at random steps."""
    kinds = [*killed.KINDS, *["somewhere"] * 4]
    kinds += rng.choices(killed.KINDS, k=count - len(kinds))
    rng.shuffle(kinds)
    return list(zip(kinds, sorted(rng.sample(range(1, 40), count)), strict=True))


def run(place, instants):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE.parents[1], HERE.parent))),
    }
    command = [sys.executable, str(HERE / "killed.py"), str(place), json.dumps(instants)]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


READER = """
import multiprocessing
import numpy as np
from byov_jax.data.dataset import ArraySource
from byov_jax.data.loading import pipeline

if __name__ == "__main__":  # workers import this file as well
    images = ArraySource(np.zeros((32, 9, 9, 3), np.uint8), np.zeros(32, np.int32), "black")
    order = {"seed": 0, "batch_size": 8, "rows": np.arange(8), "first": 0, "steps": 10**6, "size": 8}
    with pipeline.batches(images, crops=1, workers=1, **order) as batches:
        next(batches)
        (worker,) = multiprocessing.active_children()
        print(worker.pid, flush=True)
        for batch in batches:
            pass
"""


def test_workers_do_not_outlive_a_process_that_was_killed(tmp_path):
    (tmp_path / "reader.py").write_text(READER)
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(tmp_path / "reader.py")], env=environment, stdout=subprocess.PIPE
    ) as reader:
        worker = Path("/proc") / reader.stdout.readline().decode().strip()
        if not worker.parent.is_dir():
            pytest.skip("only /proc tells which processes there are")
        assert worker.is_dir()
        reader.kill()
    end = time.monotonic() + 60.0
    while worker.is_dir() and (worker / "stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.05)
