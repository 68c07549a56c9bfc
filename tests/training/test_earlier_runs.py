"""A run directory of an earlier version, stopped half-way, is resumed, evaluated and reported by this one.

run_of_0_1_0.tar.xz is a run of byov_jax 0.1.0 before its redesign: six steps of a tiny network on embedded
images, with the lines of all six steps, the checkpoint of the third, and an evaluation.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from trainings import lines

import byov_jax
from byov_jax import report
from byov_jax.evaluation.suite import run as suite
from byov_jax.training import build, run_directory, trainer

ARCHIVE = Path(__file__).with_name("run_of_0_1_0.tar.xz")

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture
def run(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def numbers(line, prefix=""):
    """Every number of a line, by its dotted name."""
    found = {}
    for name, value in line.items():
        nested = numbers(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        found |= nested
    return found


def stable(line):
    return {name: value for name, value in numbers(line).items() if ".snr_" not in name}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert found[name] is None, name
        else:
            np.testing.assert_allclose(found[name], value, rtol=1e-2, atol=0.02, err_msg=name)


def test_it_is_loaded(run):
    model = byov_jax.load(run)
    assert (model.step, model.config.method, model.bayesian) == (3, "byov", True)
    images = build.dataset(model.config).test.image[:4]
    assert model.embed(images).shape == (4, 8)


def test_its_config_is_written_as_it_was(run):
    text = (run / run_directory.CONFIG).read_text()
    run_directory.create_or_open(run, run_directory.read_config(run))
    assert (run / run_directory.CONFIG).read_text() == text
    assert json.loads(text) == json.loads(json.dumps(run_directory.read_config(run).to_dict()))


def test_it_is_resumed_to_the_same_numbers(run, optimized):
    """To rounding: the expected lines were computed with another number of devices, on another machine.

    The signal-to-noise ratio of biases, which begin at 0, is left out: Adam's first steps magnify rounding.
    """
    expected = {name: lines(run, name) for name in (run_directory.METRICS, run_directory.POSTERIOR)}
    config = run_directory.read_config(run)
    data = build.dataset(config)
    assert trainer.train(trainer.resolve_config(config, data), data, run) == (6, 0)
    for name, before in expected.items():
        for found, line in zip(lines(run, name), before, strict=True):
            assert_close(stable(found), stable(line))


def test_its_evaluation_still_counts_and_is_continued(run):
    evaluator = suite.open_run(run)
    before = json.loads((run / run_directory.EVALUATION).read_text())
    # It was measured after the sixth step; the model is that of the third.
    assert evaluator.read("probe") is None
    evaluator.measure(["layers"])
    suite.write_result(run, evaluator)
    after = json.loads((run / run_directory.EVALUATION).read_text())
    assert after["parts"]["layers"].keys() == before["parts"]["layers"].keys()
    assert after.keys() == before.keys()


def test_it_is_reported(run, tmp_path):
    page = report.write([run], tmp_path / "report.html")
    assert "BYOV" in page.read_text()
