"""`byov evaluate` on tiny runs: every part, resumed, compared, and wrong inputs."""

import json
import shutil

import jax
import numpy as np
import pytest

from byov_jax import Batch
from byov_jax.checkpoints import checkpointer
from byov_jax.cli import evaluate
from byov_jax.data.sources.npz import ARRAYS
from byov_jax.evaluation.suite import PARTS
from byov_jax.images import shifts
from byov_jax.training import build, run_directory
from byov_jax.training.config import Config

CLASSES = 3
FAST = ("--draws=3", "--shift_draws=2", "--shift_images=12", "--std_draws=3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs with their initial states, and their data."""
    root = tmp_path_factory.mktemp("runs")
    write_data(root / "data.npz")
    for method in ("byov", "byol", "supervised_bbb"):
        write_run(root / method, method, root / "data.npz")
    return root


def write_data(file):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 60), ("test", 30)):
        label = np.arange(count) % CLASSES
        arrays[f"{split}_label"] = label
        pattern = 60 * label[:, None, None, None] + rng.integers(0, 80, (count, 28, 28, 1))
        arrays[f"{split}_image"] = pattern.astype(np.uint8)
    assert set(arrays) == set(ARRAYS)
    np.savez(file, **arrays)


def write_run(run, method, data):
    config = Config.parse(
        {
            "method": method,
            "steps": 5,
            "log_var": -12.0,  # the probabilities vary smoothly over the draws
            "data": {"source": str(data), "size": 60, "image": (28, 28, 1), "classes": CLASSES},
            "encoder": {
                "name": "vit",
                "patch": 14,
                "width": 8,
                "depth": 1,
                "heads": 2,
                "positions": "sincos",
            },
            "projector": {"widths": (8, 4)},
            "predictor": {"widths": (8, 4)},
        }
    )
    run_directory.create(run, config)
    batch = Batch(np.zeros((1, 28, 28, 1), np.uint8), np.zeros(1, np.int32))
    state = build.method(config, build.network(config)).init(jax.random.key(1), batch)
    checkpointer.save(run / run_directory.CHECKPOINTS, 0, state)


def run(*arguments):
    return evaluate.main([*map(str, arguments)])


@pytest.fixture(scope="module")
def evaluated(folder):
    """The BYOV run with every part measured against both others."""
    others = (f"--baseline={folder / 'byol'}", f"--supervised={folder / 'supervised_bbb'}")
    assert run(f"--run={folder / 'byov'}", *others, *FAST, "--blocks=1", "--refit") == 0
    return folder / "byov"


def read(run):
    return json.loads((run / run_directory.EVALUATION).read_text())


@pytest.mark.slow
def test_every_part_is_measured(evaluated):
    found = read(evaluated)
    assert list(found["parts"]) == sorted(PARTS)
    assert found["missing"] == []
    parts = found["parts"]
    rows = parts["probe"]["accuracy"]
    names = {"raw pixels", "untrained", "student mean", "student MC", "teacher", "last 1 blocks"}
    assert set(rows) == names
    assert {"linear", "linear, 1% of labels", "linear, 10% of labels", "kNN 20"} <= set(rows["student MC"])
    for mode in ("mean", "mc", "teacher"):
        metrics = parts["calibration"][mode]
        assert 0 <= metrics["ece"]["low"] <= metrics["ece"]["high"] <= 1
        total = metrics["uncertainty"] - metrics["resolution"]["value"] + metrics["reliability"]["value"]
        assert abs(metrics["brier"]["value"] - total + 2 * metrics["within_covariance"]) < 1e-6
    assert set(shifts.NAMES) <= set(parts["shift"])
    worst = parts["shift"]["gaussian_noise"]["5"]
    assert {"top1", "ece", "adaptive_ece", "reliability", "nll"} <= set(worst["mc"])
    assert set(worst["detection"]) == {"entropy", "mutual_information", "latent_variance"}
    assert set(parts["ood"]) == {"images", "draws", "uniform noise", "textures"}
    for criterion in ("snr", "magnitude", "random"):
        curve = parts["pruning"][criterion]
        assert curve[0]["sparsity"] == 0
        assert curve[0]["accuracy"] == rows["student mean"]["linear"]
        assert [row["keep"] for row in curve] == sorted((row["keep"] for row in curve), reverse=True)
        assert "accuracy with a refitted probe" in curve[-1]
    assert {"encoder", "projector", "predictor"} <= set(parts["latent"])
    assert -1 <= parts["alignment"]["pearson"]["value"] <= 1
    assert parts["layers"]["encoder/patch_embedding/kernel"]["sigma_mean"] == pytest.approx(
        np.exp(-6.0), rel=1e-4
    )


@pytest.mark.slow
def test_gains_are_differences_to_the_baseline(evaluated):
    mine, theirs = read(evaluated), json.loads((evaluated.parent / "byol/evaluation/shift.json").read_text())
    gain = mine["baseline"]["gain"]["shift"]["mc"]["rotate"]["5"]["ece"]
    ece = mine["parts"]["shift"]["rotate"]["5"]["mc"]["ece"]["value"]
    baseline = theirs["numbers"]["rotate"]["5"]["mean"]["ece"]["value"]
    assert gain["value"] == pytest.approx(100 * (baseline - ece), abs=1e-4)
    assert gain["low"] <= gain["high"]
    assert set(mine["baseline"]["gain"]["calibration"]) == {"mean", "mc"}
    assert {"magnitude", "random"} <= set(mine["baseline"]["pruning"])


@pytest.mark.slow
def test_arrays_are_kept_for_the_figures(evaluated):
    with np.load(evaluated / "evaluation/calibration.npz") as arrays:
        assert arrays["mc/probs"].shape == (30, CLASSES)
        assert arrays["mc/bins/samples"].sum() == 30
        assert arrays["examples/image"].shape == (24, 28, 28, 1)
        entropy = arrays["mc/entropy"][arrays["examples/index"]]
        assert entropy[arrays["examples/certain"]].max() <= entropy[~arrays["examples/certain"]].min()
    assert read(evaluated)["parts"]["calibration"]["classes"] == ["0", "1", "2"]
    with np.load(evaluated / "evaluation/convergence.npz") as arrays:
        assert arrays["mean"].shape == (50, 50)
    with np.load(evaluated / "evaluation/alignment.npz") as arrays:
        assert arrays["density"].shape == (64, 64)


@pytest.mark.slow
def test_only_what_is_missing_is_measured_again(evaluated, capsys):
    before = read(evaluated)
    (evaluated / "evaluation/convergence.json").unlink()
    # Options of other parts may differ.
    assert run(f"--run={evaluated}", *FAST, "--draws=7", "--only=convergence,ood,layers") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines if line.endswith("before")] == [
        "ood was measured before",
        "layers was measured before",
    ]
    for part, numbers in read(evaluated)["parts"].items():
        assert numbers == before["parts"][part]


@pytest.mark.slow
def test_a_copy_gives_the_same_numbers_and_another_seed_does_not(evaluated, tmp_path):
    before = read(evaluated)["parts"]
    copy = tmp_path / "copy"
    shutil.copytree(evaluated, copy)
    shutil.rmtree(copy / "evaluation")
    only = "--only=calibration,convergence,latent"
    for seed, same in ((0, True), (1, False)):
        assert run(f"--run={copy}", *FAST, only, f"--seed={seed}") == 0
        for part, numbers in read(copy)["parts"].items():
            assert (numbers == before[part]) is same


@pytest.mark.slow
def test_a_deterministic_run_gives_reasons_for_missing_numbers(folder, evaluated):
    assert (
        run(f"--run={folder / 'byol'}", *FAST, "--only=calibration,convergence,latent,layers,alignment") == 0
    )
    parts = read(folder / "byol")["parts"]
    for part in ("convergence", "latent", "layers", "alignment"):
        assert parts[part]["reason"]
    assert parts["calibration"]["mc"]["mutual_information"] == 0
    assert parts["calibration"]["mc"]["ece"] == parts["calibration"]["mean"]["ece"]


def lines_of(capsys):
    return capsys.readouterr().err.strip().splitlines()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (shutil.rmtree, "is not a directory"),
        (lambda run: (run / "config.json").unlink(), "is not a run directory: it has no config.json"),
        (lambda run: (run / "config.json").write_text("{"), "cannot be read"),
        (lambda run: (run / "config.json").write_text('{"colour": 1}'), "config has no key colour"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "no finished checkpoint"),
    ],
)
def test_a_broken_run_is_one_clear_line(folder, tmp_path, capsys, break_it, message):
    broken = tmp_path / "broken"
    shutil.copytree(folder / "byol", broken, ignore=shutil.ignore_patterns("evaluation*"))
    break_it(broken)
    assert run(f"--run={broken}") == 2
    (line,) = lines_of(capsys)
    assert line.startswith("evaluate: ")
    assert message in line
    assert not (broken / "evaluation").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only=colour",), "--only=colour: expected parts among probe, calibration"),
        (("--draws=0",), "--draws=0 must be at least 1"),
        (("--shift_images=-5",), "--shift_images=-5 must be at least 1"),
    ],
)
def test_a_wrong_option_is_one_clear_line(folder, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        run(f"--run={folder / 'byol'}", *arguments)
    assert stopped.value.code == 2
    assert message in lines_of(capsys)[-1]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data=nowhere", "neither 'fashion_mnist'"),
        ("--data=fashion_mnist", "10 classes; the model has 3"),
        ("--supervised={folder}/byol", "is not a supervised_bbb run"),
        ("--baseline={folder}/none", "is not a directory"),
    ],
)
def test_other_data_and_runs_that_do_not_fit_are_one_clear_line(folder, capsys, option, message):
    assert run(f"--run={folder / 'supervised_bbb'}", option.format(folder=folder)) == 2
    (line,) = lines_of(capsys)
    assert message in line
