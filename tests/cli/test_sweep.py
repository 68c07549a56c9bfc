"""`byov sweep`: trained, evaluated and summarized; resumed after an interruption, and after failures."""

import csv
import json
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from byov_jax.checkpoints import checkpointer, store
from byov_jax.cli import command, grid, sweep
from byov_jax.evaluation.suite import evaluator
from byov_jax.methods.objectives import Batch
from byov_jax.report import aggregate
from byov_jax.training import build, loop, run_directory
from byov_jax.training.trainer import TrainResult

pytestmark = pytest.mark.usefixtures("one_device")

CONFIG = """
import ml_collections

def get_config(variant="byov"):
    if variant not in ("byov", "byol"):
        raise ValueError(f"unknown variant {{variant!r}}")
    return ml_collections.ConfigDict({{
        "method": variant,
        "steps": 2,
        "batch_size": 16,
        "data": {{"source": {data!r}}},
        "encoder": {{"name": "vit", "patch": 7, "width": 8, "depth": 1, "heads": 2, "mlp_width": 8}},
        "projector": {{"widths": (8, 8)}},
        "predictor": {{"widths": (8, 8)}},
        "views": {{"name": "small_gray", "size": 14, "jitter": 0.0, "solarize": 0.0}},
        "where": "predictor",  # the noise of few weights compiles faster
        "log_var": -4.0,
    }})
"""
NAME = "byov-standard-beta0to0.3-predictor-seed"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, and a config of them."""
    place = tmp_path_factory.mktemp("place")
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 60), ("test", 40)):
        label = np.arange(count) % 3
        arrays[f"{split}_label"] = label
        image = 20 * label[:, None, None, None] + rng.integers(0, 200, (count, 14, 14, 1))
        arrays[f"{split}_image"] = image.astype(np.uint8)
    np.savez(place / "data.npz", **arrays)
    (place / "config.py").write_text(CONFIG.format(data=str(place / "data.npz")))
    return place


def arguments(place, *more, workdir=None):
    fixed = (f"--config={place / 'config.py'}", f"--workdir={workdir or place / 'sweep'}")
    return [*fixed, "--evaluate=calibration", *more]


def run(place, *more, workdir=None):
    return sweep.main(arguments(place, *more, workdir=workdir))


@pytest.fixture(scope="module")
def swept(place):
    """Three seeds: one that is new, one that was trained and failed later, one where another run is."""
    with pytest.MonkeyPatch.context() as patch:
        devices = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda: devices)
        patch.setattr(jax, "device_count", lambda: 1)
        _, trained, foreign = sweep.prepare(sweep._arguments(arguments(place, "--seed=0,1,2")))
        pretend_trained(trained)
        foreign.folder.mkdir(parents=True)
        (foreign.folder / run_directory.CONFIG).write_text('{"tau": 0.5}')
        assert run(place, "--seed=0,1,2") == command.EXIT_FAILED
    return place / "sweep"


def pretend_trained(job):
    """A run whose last checkpoint is its first state, with the traceback of an earlier attempt."""
    run_directory.create(job.folder, job.config)
    method = build.method(job.config, build.network(job.config))
    state = method.init(loop.keys(job.config.seed).init, Batch(job.data.train.image, job.data.train.label))
    steps = job.config.steps
    checkpointer.save(job.folder / run_directory.CHECKPOINTS, steps, state._replace(step=jnp.asarray(steps)))
    (job.folder / sweep.ERROR).write_text("Traceback: out of memory")


def table(workdir):
    with (workdir / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def measured(workdir, seed, mode, name):
    found = json.loads((workdir / f"{NAME}{seed}" / run_directory.EVALUATION).read_text())
    return 100.0 * found["parts"]["calibration"][mode][name]["value"]


@pytest.mark.slow
def test_the_summary_is_the_mean_over_seeds_with_its_interval(swept):
    rows = {row["weights"]: row for row in table(swept)}
    assert set(rows) == {"mean weights", "draws", "teacher"}
    for mode, name in (("mean", "mean weights"), ("mc", "draws"), ("teacher", "teacher")):
        assert rows[name]["seeds"] == "0 1"
        for metric in aggregate.METRICS:
            values = [measured(swept, seed, mode, metric) for seed in (0, 1)]
            half = stats.t.ppf(0.975, 1) * np.std(values, ddof=1) / np.sqrt(2)
            assert float(rows[name][metric]) == pytest.approx(np.mean(values))
            assert float(rows[name][f"{metric}_half_width"]) == pytest.approx(half)
    text = (swept / "summary.md").read_text()
    shown = np.mean([measured(swept, seed, "mc", "ece") for seed in (0, 1)])
    assert f" {shown:.2f} ± " in text
    assert f"1 of 3 runs failed and are not in the table:\n\n- {NAME}2: see {NAME}2/error.txt" in text


@pytest.mark.slow
def test_a_failure_leaves_its_traceback_and_the_others_continue(swept, place, capsys):
    error = (swept / f"{NAME}2" / sweep.ERROR).read_text()
    assert error.startswith("Traceback")
    assert "holds another run" in error
    assert {file.name for file in (swept / f"{NAME}2").iterdir()} == {"config.json", sweep.ERROR}
    for seed in (0, 1):
        assert store.latest_step(swept / f"{NAME}{seed}" / run_directory.CHECKPOINTS) == 2
        assert not (swept / f"{NAME}{seed}" / sweep.ERROR).exists()  # one of them had failed before
    assert run(place, "--seed=1,2") == command.EXIT_FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sweep: {NAME}2 failed: workdir {swept / f'{NAME}2'} holds another run: ")


@pytest.mark.slow
def test_what_is_done_is_not_done_again(swept, place, capsys, monkeypatch):
    monkeypatch.setattr(sweep.trainer, "train", None)  # calling it would fail
    monkeypatch.setattr(evaluator.Evaluator, "measure", None)
    files = [swept / f"{NAME}{seed}" / run_directory.EVALUATION for seed in (0, 1)]
    before = [file.stat().st_mtime_ns for file in files]
    assert run(place, "--seed=0,1") == 0
    assert capsys.readouterr().out.count("done already") == 2
    assert [file.stat().st_mtime_ns for file in files] == before


@pytest.mark.slow
def test_one_seed_has_no_interval(swept, place, tmp_path):
    shutil.copytree(swept / f"{NAME}0", tmp_path / f"{NAME}0")
    assert run(place, "--seed=0", workdir=tmp_path) == 0
    assert all(row["seeds"] == "0" and row["top1_half_width"] == "" for row in table(tmp_path))
    rows = [line for line in (tmp_path / "summary.md").read_text().splitlines() if line.startswith("| BYOV")]
    assert len(rows) == 3
    assert all("| 1 |" in row and "±" not in row for row in rows)


def test_any_exception_is_one_line_and_the_others_continue(place, tmp_path, capsys, monkeypatch):
    def train(config, data, workdir, callbacks):
        raise RuntimeError(f"out of memory\nin seed {config.seed}")

    monkeypatch.setattr(sweep.trainer, "train", train)
    assert run(place, "--seed=0,1", workdir=tmp_path / "sweep") == command.EXIT_FAILED
    lines = capsys.readouterr().err.splitlines()
    for seed, line in zip((0, 1), lines, strict=True):
        assert line == f"sweep: {NAME}{seed} failed: RuntimeError: out of memory in seed {seed}"
        assert "in train" in (tmp_path / "sweep" / f"{NAME}{seed}" / sweep.ERROR).read_text()


def test_interrupting_stops_the_sweep(place, tmp_path, capsys, monkeypatch):
    trained = []
    monkeypatch.setattr(
        sweep.trainer, "train", lambda *arguments: trained.append(arguments) or TrainResult(1, signal.SIGINT)
    )
    assert run(place, "--seed=0,1", workdir=tmp_path / "sweep") == 130
    assert len(trained) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{NAME}0 saved at step 1 of 2; the same command resumes it")
    assert not (tmp_path / "sweep" / "summary.md").exists()


def test_a_dry_run_lists_the_runs_and_writes_nothing(place, tmp_path, capsys):
    more = ("--beta=0.1,1:1", "--where=all", "--seed=3", "--baseline", "--dry_run")
    assert run(place, *more, workdir=tmp_path / "sweep") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"3 runs in {tmp_path / 'sweep'}",
        "  byov-standard-beta0to0.1-all-seed3  new",
        "  byov-standard-beta1to1-all-seed3  new",
        "  byol-seed3  new",
    ]
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--beta=0.3,much", "--beta=much: expected a number, 0 or more, or START:END"),
        ("--beta=1:-1", "--beta=1:-1: expected a number"),
        ("--beta=0:1:2", "--beta=0:1:2: expected a number"),
        ("--seed=0,-1", "--seed=-1: expected integers"),
        ("--prior=standard,flat", "config.prior='flat' must be one of standard, teacher_mean"),
        ("--where=all,nothing_at_all", "where='nothing_at_all' matches none of"),
        ("--config.tau=2", "config.tau=2 must be in [0, 1]"),
        ("--config.prior=standard", "--config.prior=standard: a sweep sets prior itself, with --prior"),
        ("--config.stepz=3", "config has no key stepz: did you mean steps?"),
        ("--evaluate=layers", "--evaluate=layers: expected calibration"),
        ("--evaluate=calibration,taste", "--evaluate=calibration,taste: expected calibration"),
        ("--config={place}/config.py:byol", "byol has neither prior nor beta to sweep over"),
        ("--config.data.source={place}", "not an image file, remove it"),
        ("--workdir={place}/config.py/sweep", "cannot be made (Not a directory): choose another"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(place, tmp_path, capsys, argument, message):
    assert run(place, argument.format(place=place), workdir=tmp_path / "sweep") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sweep: ")
    assert message in line
    assert not (tmp_path / "sweep").exists()


def test_unlabelled_images_cannot_be_swept_over(place, tmp_path, capsys):
    from PIL import Image

    for i in range(20):
        Image.fromarray(np.full((14, 14), 10 * i, np.uint8)).save(tmp_path / f"{i}.png")
    assert run(place, f"--config.data.source={tmp_path}", workdir=tmp_path / "sweep") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no labels" in line


def test_names_are_readable_and_apart(place):
    axes = grid.Axes(
        prior=["standard", "teacher_mean"],
        beta=grid.betas("0.3,0:0.3,0.1:0.25"),
        where=["no_conv", "attention|mlp"],
        seed=grid.seeds("0,1,1"),
    )
    points = grid.points(str(place / "config.py"), ["tau=0.9"], axes, baseline=True)
    names = [point.name for point in points]
    assert len(set(names)) == len(names) == 2 * 2 * 2 * 2 + 2
    assert names[0] == "byov-standard-beta0to0.3-no_conv-seed0"
    assert names[2].startswith("byov-standard-beta0to0.3-attention_mlp_")
    assert names[-2:] == ["byol-seed0", "byol-seed1"]
    assert all(point.config.tau == 0.9 for point in points)
    last = points[-3].config
    assert [getattr(last, key) for key in grid.AXES] == ["teacher_mean", 0.1, 0.25, "attention|mlp", 1]
    assert points[-1].config.method == "byol"
