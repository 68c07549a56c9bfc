"""`byov_jax.evaluate`: the results of `byov evaluate` as a function, without files."""

import json
import re

import jax
import numpy as np
import pytest
import trainings

import byov_jax as byov
from byov_jax.cli import evaluate as command
from byov_jax.errors import RunError
from byov_jax.evaluation import alignment
from byov_jax.evaluation.suite import PARTS, Options
from byov_jax.training import build, run_directory, trainer

PARTS_MEASURED = ["calibration", "probe", "layers"]
OPTIONS = Options(draws=3, shift_draws=2, shift_images=8, std_draws=3)
FLAGS = ("--draws=3", "--shift_draws=2", "--shift_images=8", "--std_draws=3")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The tiny data set in a file."""
    file = tmp_path_factory.mktemp("data") / "data.npz"
    splits = {"train": trainings.DATA.train, "test": trainings.DATA.test}
    np.savez(
        file,
        **{f"{name}_{key}": value for name, part in splits.items() for key, value in part._asdict().items()},
    )
    return str(file)


@pytest.fixture(scope="module")
def runs(source, tmp_path_factory):
    """A BYOV and a BYOL run of two steps, and a supervised Bayesian one, on the data of `source`."""
    root = tmp_path_factory.mktemp("runs")
    changes = {"steps": 2, "data": {"source": source}}
    with pytest.MonkeyPatch.context() as patch:
        devices = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda: devices)
        patch.setattr(jax, "device_count", lambda: 1)
        for method in ("byov", "byol", "supervised_bbb"):
            config = trainings.prepared(method=method, **changes)
            trainer.train(config, build.dataset(config), root / method)
    return root


@pytest.fixture(scope="module")
def model(runs):
    return byov.load(runs / "byov")


@pytest.fixture(scope="module")
def data(model):
    return build.dataset(model.config)


def files_of(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def plain(result):
    return json.loads(json.dumps(result))


def evaluated(run, *arguments):
    """The contents of evaluation.json after the command."""
    assert command.main([f"--run={run}", *FLAGS, *arguments]) == 0
    return json.loads((run / run_directory.EVALUATION).read_text())


@pytest.mark.slow
def test_the_result_is_that_of_the_command_and_nothing_is_written(
    runs, model, data, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before = files_of(runs)
    baseline = byov.load(runs / "byol")
    alone = byov.evaluate(model, data, parts=PARTS_MEASURED, options=OPTIONS)
    compared = byov.evaluate(model, data, parts=PARTS_MEASURED, baseline=baseline, options=OPTIONS)
    assert files_of(runs) == before
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""

    only = f"--only={','.join(PARTS_MEASURED)}"
    assert plain(alone) == evaluated(runs / "byov", only)
    written = evaluated(runs / "byov", only, f"--baseline={runs / 'byol'}")
    written["baseline"]["run"] = "baseline"  # in memory it has no directory
    assert plain(compared) == written

    assert set(alone["parts"]) == set(PARTS_MEASURED)
    assert alone["missing"] == [part for part in PARTS if part not in PARTS_MEASURED]
    assert alone["baseline"] is None
    assert compared["parts"] == alone["parts"]


@pytest.mark.slow
def test_gains_over_a_baseline(runs, model, data):
    baseline = byov.load(runs / "byol")
    result = byov.evaluate(model, data, ["calibration", "pruning"], baseline=baseline, options=OPTIONS)
    other = byov.evaluate(baseline, data, ["calibration", "pruning"], options=OPTIONS)
    gains = result["baseline"]
    assert (gains["run"], gains["method"]) == ("baseline", "byol")
    ours, theirs = (one["parts"]["calibration"] for one in (result, other))
    for mode in ("mean", "mc"):
        difference = 100 * (ours[mode]["top1"]["value"] - theirs["mean"]["top1"]["value"])
        assert gains["gain"]["calibration"][mode]["top1"]["value"] == pytest.approx(difference, abs=1e-4)
    assert gains["pruning"] == other["parts"]["pruning"]


@pytest.mark.slow
def test_stds_without_a_correlation_are_a_reason(runs, model, data, monkeypatch):
    def align(*arguments):
        raise ValueError("the 24 points lie on a line")

    monkeypatch.setattr(alignment, "align", align)
    reference = byov.load(runs / "supervised_bbb")
    result = byov.evaluate(model, data, ["alignment"], supervised=reference, options=OPTIONS)
    assert "the 24 points lie on a line" in result["parts"]["alignment"]["reason"]


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    run = tmp_path_factory.mktemp("untrained")
    trainings.write_untrained(run)
    return byov.load(run)


def test_parts_are_checked_before_anything_is_measured(untrained):
    message = f"parts='colour': expected some of {', '.join(PARTS)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        byov.evaluate(untrained, trainings.DATA, parts=["calibration", "colour"])


def test_images_and_models_that_do_not_fit_are_refused(untrained):
    images = trainings.DATA.test._replace(image=trainings.DATA.test.image[:, :7])
    with pytest.raises(RunError, match=re.escape("are (7, 14, 1); the model takes (14, 14, 1)")):
        byov.evaluate(untrained, trainings.DATA._replace(test=images), ["layers"])
    with pytest.raises(RunError, match=re.escape("the images of ood are (7, 14, 1)")):
        byov.evaluate(untrained, trainings.DATA, ["layers"], ood=images)
    with pytest.raises(RunError, match="the model for alignment is a byov one, not supervised_bbb"):
        byov.evaluate(untrained, trainings.DATA, ["layers"], supervised=untrained)


def test_no_parts_are_no_results(untrained):
    result = byov.evaluate(untrained, trainings.DATA, parts=[])
    assert result["parts"] == result["settings"] == {}
    assert result["missing"] == list(PARTS)
    assert result["run"]["step"] == 0
