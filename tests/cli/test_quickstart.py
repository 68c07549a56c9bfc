"""`byov quickstart` on a tiny recipe: trains, evaluates, prints a table, and draws the report."""

import json
import re

import ml_collections
import numpy as np
import pytest

from byov_jax.cli import quickstart
from byov_jax.recipes import variants

CLASSES = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "data.npz"
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 64), ("test", 40)):
        label = np.arange(count) % CLASSES
        arrays[f"{split}_label"] = label
        pattern = 60 * label[:, None, None, None] + rng.integers(0, 80, (count, 14, 14, 1))
        arrays[f"{split}_image"] = pattern.astype(np.uint8)
    np.savez(file, **arrays)
    return file


@pytest.fixture
def tiny(data, monkeypatch):
    """Three trainings of a few seconds each, and the cheapest measurements."""

    def get_config(name):
        vit = {"name": "vit", "patch": 7, "width": 8, "depth": 1, "heads": 2, "positions": "sincos"}
        return ml_collections.ConfigDict(
            {
                **variants.parse(name),
                "steps": 4,
                "batch_size": 16,
                "data": {"source": str(data)},
                "encoder": vit,
                "projector": {"widths": (8, 4)},
                "predictor": {"widths": (8, 4)},
                "views": {"name": "small_gray", "size": 14},
                "optimizer": {"name": "adamw", "learning_rate": 1e-3, "warmup": 1},
                "log_every": 2,
            }
        )

    supervised = {"train": 1.0, "calibration": 1.0}
    parts = supervised | {"probe": 1.0}
    monkeypatch.setattr(quickstart.recipe, "get_config", get_config)
    monkeypatch.setattr(
        quickstart,
        "SECONDS",
        {
            "byol": parts,
            "byov": parts | {"layers": 1.0},
            "supervised_bbb": {"train": 1.0, "calibration": 1.0},
        },
    )


@pytest.mark.slow
def test_it_trains_evaluates_reports_and_resumes(tiny, tmp_path, capsys):
    workdir = tmp_path / "quickstart"
    assert quickstart.main([f"--workdir={workdir}"]) == 0
    shown = capsys.readouterr().out
    table = dict(re.findall(r"^(\S.*?)  +(\d+\.\d%.*)$", shown, re.M))
    assert list(table) == [
        "BYOL",
        "BYOV, mean weights",
        "BYOV, 30 draws",
        "supervised BBB, mean weights",
        "supervised BBB, 30 draws",
        "untrained network",
        "raw pixels",
    ]
    page = workdir / "report.html"
    assert f"Look at {page}" in shown
    assert "Not measured" in page.read_text()

    found = json.loads((workdir / "byov" / "evaluation.json").read_text())["parts"]
    accuracy, ece, reliability, nll, neighbours = table["BYOV, 30 draws"].split()
    measured = found["calibration"]["mc"]
    assert accuracy == f"{measured['top1']['value']:.1%}"
    assert ece == f"{measured['ece']['value']:.1%}"
    assert reliability == f"{measured['reliability']['value']:.3f}"
    assert nll == f"{measured['nll']['value']:.3f}"
    assert neighbours == f"{found['probe']['accuracy']['student MC']['kNN 20']:.1%}"
    assert table["raw pixels"].split()[0] == f"{found['probe']['accuracy']['raw pixels']['linear']:.1%}"

    assert quickstart.main([f"--workdir={workdir}"]) == 0
    again = capsys.readouterr().out
    assert "byov: resuming after step 4 of 4" in again
    tables = (text[text.index("40 test images") :].splitlines()[:8] for text in (shown, again))
    assert next(tables) == next(tables)

    assert quickstart.main([f"--workdir={workdir}", "--seed=1"]) == 2
    refused = capsys.readouterr().err
    assert "holds another run: seed is 0 there, 1 here" in refused
    assert refused.count("\n") == 1
