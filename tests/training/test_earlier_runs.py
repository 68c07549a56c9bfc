"""A run directory of an earlier version is evaluated and reported by this one; its training is not continued.

run_of_0_1_0.tar.xz is a run of byov_jax 0.1.0 before its redesign: six steps of a tiny network on embedded
images, with the lines of all six steps, the checkpoint of the third, and an evaluation.
"""

import json
import tarfile
from pathlib import Path

import pytest

import byov_jax
from byov_jax import report
from byov_jax.errors import RunError
from byov_jax.evaluation.suite import run as suite
from byov_jax.training import build, earlier_runs, run_directory, trainer
from byov_jax.training.config import Config

ARCHIVE = Path(__file__).with_name("run_of_0_1_0.tar.xz")

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture
def run(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def test_it_is_loaded(run):
    model = byov_jax.load(run)
    assert (model.step, model.config.method, model.bayesian) == (3, "byov", True)
    images = build.dataset(model.config).test.image[:4]
    assert model.embed(images).shape == (4, 8)
    assert model.embed(images, tap="predictor").shape == (4, 8)


@pytest.mark.parametrize("given", [{}, {"output_bias": True}, {"output_bias": False}])
def test_heads_of_a_run_that_does_not_tell_have_the_bias_that_they_had(given):
    head = {"widths": (8, 8), "norm": "batch", **given}
    config = Config.parse(earlier_runs.upgraded({"projector": head, "variance": {}}))
    assert config.projector.output_bias is given.get("output_bias", True)
    assert Config.parse({"projector": head}).projector.output_bias is given.get("output_bias", False)


def test_its_config_has_the_keys_of_this_version(run):
    """The rate of log_var was a multiple of the optimizer's, and heads had a bias in their last layer."""
    before = json.loads((run / run_directory.CONFIG).read_text())
    after = json.loads(json.dumps(run_directory.read_config(run).to_dict()))
    optimizer = before.pop("optimizer")
    rate = optimizer.pop("log_var_multiplier") * optimizer["learning_rate"]
    assert after.pop("optimizer") == optimizer
    assert after.pop("variance") == {"name": "adam", "learning_rate": rate, "b1": 0.9, "b2": 0.95}
    for head in ("projector", "predictor"):
        assert after.pop(head) == {**before.pop(head), "output_bias": True}
    assert after == before


def test_its_training_is_refused_in_one_line_and_nothing_is_touched(run):
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    config = run_directory.read_config(run)
    data = build.dataset(config)
    with pytest.raises(
        RunError, match=r"was trained by byov_jax 0\.1\.0: this version evaluates it, but cannot"
    ):
        trainer.train(trainer.resolve_config(config, data), data, run)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


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
