"""Reading runs: what is missing is empty, what is damaged is one line that names it."""

import json

import numpy as np
import pytest
from report.synthetic import write_lines, write_run

from byov_jax.errors import RunError
from byov_jax.report import runs
from byov_jax.training import run_directory


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "byov")


def test_a_run_comes_back_as_it_was_written(run):
    found = runs.read(run)
    assert found.config == run_directory.read_config(run).to_dict()
    assert [line["step"] for line in found.metrics] == list(range(1, 21))
    assert found.measured("pruning")["images"] == 60
    assert found.arrays("calibration", "mc/probs")["mc/probs"].shape == (60, 3)
    assert set(found.arrays("calibration", "examples/", "label")) == {
        "examples/image",
        "examples/index",
        "examples/certain",
        "label",
    }


def test_what_is_not_there_is_empty(tmp_path):
    (tmp_path / run_directory.CONFIG).write_text("{}")
    found = runs.read(tmp_path)
    assert found.metrics == found.posterior == ()
    assert found.parts == found.settings == found.compared == found.environment == {}
    assert found.measured("shift") is None
    assert found.arrays("shift") == {}


def test_a_part_that_states_a_reason_was_not_measured(tmp_path):
    found = runs.read(write_run(tmp_path / "byol", "byol"))
    assert found.parts["latent"]["reason"]
    assert found.measured("latent") is None


def test_a_run_measured_as_a_baseline_has_its_parts_beside_the_arrays(run):
    evaluation = json.loads((run / run_directory.EVALUATION).read_text())
    (run / run_directory.EVALUATION).unlink()
    kept = {"settings": evaluation["settings"]["shift"], "numbers": evaluation["parts"]["shift"]}
    (run / run_directory.ARRAYS / "shift.json").write_text(json.dumps(kept))
    assert runs.read(run).parts == {"shift": evaluation["parts"]["shift"]}


@pytest.mark.parametrize("beside", [False, True], ids=["evaluation.json", "beside the arrays"])
def test_shifts_of_0_1_have_their_present_names(run, beside):
    file = run / run_directory.EVALUATION
    evaluation = json.loads(file.read_text())
    names = {"solarize": "solarise", "posterize": "posterise"}
    old = {names.get(name, name): value for name, value in evaluation["parts"]["shift"].items()}
    assert {"solarise", "posterise"} < set(old)
    if beside:
        kept = {"settings": evaluation["settings"]["shift"], "numbers": old}
        (run / run_directory.ARRAYS / "shift.json").write_text(json.dumps(kept))
    else:
        parts = evaluation["parts"] | {"shift": old}
        file.write_text(json.dumps(evaluation | {"parts": parts}))
    assert runs.read(run).parts["shift"] == evaluation["parts"]["shift"]


def test_numbers_beside_the_arrays_take_precedence_unless_they_are_of_other_data(run):
    settings = runs.read(run).settings["pruning"]
    file = run / run_directory.ARRAYS / "pruning.json"
    file.write_text(json.dumps({"settings": settings, "numbers": {"images": 7}}))
    assert runs.read(run).parts["pruning"] == {"images": 7}
    file.write_text(json.dumps({"settings": settings | {"data": "other"}, "numbers": {"images": 7}}))
    assert runs.read(run).parts["pruning"]["images"] == 60


def test_an_unfinished_last_line_is_left_out_and_a_damaged_one_is_not(run):
    file = run / run_directory.METRICS
    whole = file.read_text()
    file.write_text(whole + '{"step": 21, "lo')
    assert len(runs.read(run).metrics) == 20
    file.write_text('{"step": 21, "lo\n' + whole)
    with pytest.raises(RunError, match=r"metrics\.jsonl line 1 cannot be read"):
        runs.read(run)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.json", b"{", "config.json cannot be read"),
        ("evaluation.json", b'{"parts": ', "evaluation.json cannot be read"),
        ("evaluation.json", b"\xff\xfe", "evaluation.json cannot be read"),
        ("evaluation.json", b"[" * 100000, "evaluation.json cannot be read"),
        ("evaluation.json", b"[]", "evaluation.json must hold one JSON object, not a list"),
        ("evaluation.json", b'{"parts": [1]}', "evaluation.json: parts must be one JSON object, not a list"),
        ("evaluation.json", b'{"parts": {"shift": 3}}', "part shift must be one JSON object, not a int"),
        ("environment.json", b"3", "environment.json must hold one JSON object, not a int"),
        ("posterior.jsonl", b"[1]\n", "posterior.jsonl line 1 must be one JSON object, not a list"),
        ("evaluation/shift.json", b"nothing", "shift.json cannot be read"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(run, name, content, problem):
    (run / name).write_bytes(content)
    with pytest.raises(RunError) as error:
        runs.read(run)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x80\x04\x95 a pickle"])
def test_damaged_arrays_are_one_line_that_names_the_file(run, content):
    (run / "evaluation/latent.npz").write_bytes(content)
    with pytest.raises(RunError, match=r"evaluation/latent\.npz cannot be read as \.npz"):
        runs.read(run).arrays("latent")


def test_arrays_are_never_unpickled(run):
    np.savez(run / "evaluation/latent.npz", bomb=np.array([print], dtype=object))
    with pytest.raises(RunError, match=r"latent\.npz cannot be read"):
        runs.read(run).arrays("latent")


def test_a_folder_stands_for_the_runs_in_it(tmp_path):
    for place in ("seed_10", "seed_9", "deep/er", "too/deep/by/far"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / run_directory.CONFIG).write_text("{}")
    found = [str(path.relative_to(tmp_path)) for path in runs.find(tmp_path)]
    assert found == ["deep/er", "seed_9", "seed_10"]
    assert runs.find(tmp_path / "seed_9") == [tmp_path / "seed_9"]


def test_what_is_no_run_and_has_none_is_refused(tmp_path):
    with pytest.raises(RunError, match="nowhere is not a directory"):
        runs.find(tmp_path / "nowhere")
    with pytest.raises(RunError, match="neither a run directory nor a folder of them"):
        runs.find(tmp_path)


def test_wrong_types_inside_a_file_name_the_run(run):
    write_lines(run / run_directory.METRICS, [{"step": 1, "epoch": 1, "loss": "low"}])
    found = runs.read(run)
    with pytest.raises(RunError, match=r"byov: metrics has an unexpected format"), found.parsing("metrics"):
        float(found.metrics[0]["loss"])
