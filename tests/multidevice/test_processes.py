"""Two processes with two devices each equal one process with four: train, evaluate, save, resume."""

import json
import shutil

import jax
import numpy as np
import pytest
import trainings
from commands import train

from byov_jax.model import load
from byov_jax.training import run_directory

TIMES = ("seconds", "images_per_second")
CONFIG = """
import ml_collections

def get_config(variant="byov"):
    return ml_collections.ConfigDict({{
        "method": "byov",
        "prior": "teacher_moments",
        "steps": 4,
        "batch_size": 16,
        "data": {{"source": {source!r}, "loader": "stream", "workers": 1}},
        "encoder": {{"name": "vit", "patch": 8, "width": 16, "depth": 1, "heads": 2, "pool": "mean",
                    "positions": "sincos", "init_std": 0.25}},
        "projector": {{"widths": (16, 16)}},
        "predictor": {{"widths": (16, 16)}},
        "views": {{"name": "small_color", "size": 16}},
        "optimizer": {{"name": "lars", "learning_rate": 0.1}},
        "parallel": {{"one_draw": True}},
        "log_every": 1,
        "monitor_every": 2,
        "save_every": 4,
        "monitor_images": 0,
    }})
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Write JPEGs of three classes, and a config that streams them."""
    root = trainings.write_photos(tmp_path_factory.mktemp("photos"), train=10, val=3)
    file = tmp_path_factory.mktemp("config") / "config.py"
    file.write_text(CONFIG.format(source=str(root)))
    return file


def metrics(run):
    lines = [json.loads(line) for line in (run / run_directory.METRICS).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sharded", "pmap"])
def test_two_processes_equal_one(mode, config, tmp_path):
    flag = f"--config.parallel.mode={mode}"
    train(config, tmp_path / "one", flag, processes=1, devices=4)
    first, second = train(config, tmp_path / "two", flag, processes=2, devices=2)
    assert "step 4/4" in first
    assert "step" not in second  # only process 0 prints

    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [line["step"] for line in two] == [0, 1, 2, 3, 4]
    for expected, line in zip(one, two, strict=True):
        assert line.keys() == expected.keys()
        for key, value in expected.items():
            assert line[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    compare(load(tmp_path / "one"), load(tmp_path / "two"))

    shutil.copytree(tmp_path / "two", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / run_directory.CHECKPOINTS / "4")
    train(config, tmp_path / "again", flag, processes=2, devices=2)
    assert metrics(tmp_path / "again") == two  # bit for bit


def compare(one, other):
    for name in ("posterior", "teacher", "stats"):
        for x, y in zip(*(leaves(getattr(model, name)) for model in (one, other)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)


def leaves(tree):
    return jax.tree.leaves(jax.device_get(tree))
