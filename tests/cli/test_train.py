"""`byov train`: wrong inputs, --dry_run, interruption."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from byov_jax.checkpoints import store
from byov_jax.cli import train
from byov_jax.training import run_directory

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "experiments" / "configs"
QUICKSTART = f"--config={CONFIGS / 'quickstart.py'}"
FOLDER = f"--config={CONFIGS / 'folder.py'}:byol"
TINY = """
def get_config(variant="byov"):
    return {
        "method": variant,
        "steps": 400,
        "batch_size": 16,
        "data": {"source": "SOURCE"},
        "encoder": {"name": "vit", "patch": 7, "width": 8, "depth": 1, "heads": 2, "mlp_width": 8},
        "projector": {"widths": (8, 8)},
        "predictor": {"widths": (8, 8)},
        "views": {"name": "small_gray", "size": 14},
        "log_every": 10,
        "monitor_every": 200,
        "save_every": 800,
    }
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A config file of a tiny network."""
    root, rng = tmp_path_factory.mktemp("tiny"), np.random.default_rng(0)
    arrays = {
        f"{split}_image": rng.integers(0, 256, (48, 14, 14, 1), np.uint8) for split in ("train", "test")
    }
    arrays |= {f"{split}_label": np.arange(48) % 3 for split in ("train", "test")}
    np.savez(root / "data.npz", **arrays)
    (root / "config.py").write_text(TINY.replace("SOURCE", str(root / "data.npz")))
    return root / "config.py"


def wrong(arguments, workdir, capsys):
    """The one line that a wrong command prints."""
    assert train.main([*arguments, f"--workdir={workdir}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("train: ")
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    return shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([QUICKSTART, "--config.bta_end=1"], "config has no key bta_end: did you mean beta_end?"),
        ([QUICKSTART, "--config.optimizer.wrmup=1"], "did you mean optimizer.warmup?"),
        ([QUICKSTART, "--config.encodr.width=8"], "config has no section encodr: did you mean encoder?"),
        ([QUICKSTART, "--config.steps=many"], "config.steps='many' must be an integer"),
        ([QUICKSTART, "--config.beta_end=-1"], "config.beta_end=-1 must be 0 or more"),
        ([QUICKSTART, "--config.tau=1.5"], "config.tau=1.5 must be in [0, 1]"),
        ([QUICKSTART, "--config.optimizer.warmup=600"], "must be shorter than the training of 600 steps"),
        ([QUICKSTART, "--config.beta_steps=601"], "config.beta_steps=601 must be at most 600"),
        ([QUICKSTART + ":simclr"], "unknown variant 'simclr': it begins with one of byol, byov"),
        ([f"--config={CONFIGS / 'nothing.py'}"], "is not a file; there are"),
        ([FOLDER, "--config.data.source=nowhere/at/all"], "nowhere/at/all"),
        ([FOLDER], "data ''"),
    ],
)
def test_a_wrong_command_is_one_clear_line(arguments, message, tmp_path, capsys):
    assert message in wrong(arguments, tmp_path / "run", capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_the_devices_cannot_share_is_one_clear_line(tmp_path, capsys):
    message = wrong([QUICKSTART, "--config.batch_size=100"], tmp_path / "run", capsys)
    assert "config.batch_size=100 must be a multiple of the 8 devices" in message


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (None, None),
        ("train/a/notes.txt", b"not an image"),
        ("train/a/x.jpg", b"not an image either"),
        ("train/a/y.png", b"\x89PNG\r\n\x1a\n cut off"),
        ("train/a/z.jpg", b""),
    ],
)
def test_a_bad_folder_is_one_clear_line(file, content, tmp_path, capsys):
    """Empty, with a file that is not an image, with images that cannot be read."""
    folder = tmp_path / "images"
    (folder / "train" / "a").mkdir(parents=True)
    if file is not None:
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "train" / "a" / "good.png")
        (folder / file).write_bytes(content)
    message = wrong([FOLDER, f"--config.data.source={folder}"], tmp_path / "run", capsys)
    assert str(folder / (file or "train")) in message
    assert not (tmp_path / "run").exists()


def test_a_directory_of_another_run_is_left_alone(tmp_path, capsys):
    workdir = tmp_path / "run"
    config = train.prepare(train._arguments([QUICKSTART, "--dry_run", "--config.tau=0.5"]))[0]
    run_directory.create(workdir, config)
    before = {file: file.read_bytes() for file in workdir.iterdir()}
    assert "holds another run: tau is 0.5 there, 0.97 here" in wrong([QUICKSTART], workdir, capsys)
    assert {file: file.read_bytes() for file in workdir.iterdir()} == before


def test_a_workdir_that_cannot_be_written_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    places = [tmp_path / "file", tmp_path / "file" / "run"]
    if Path("/proc").is_dir():  # not even root may write there
        places.append(Path("/proc/byov_jax/run"))
    for place in places:
        assert f"workdir {place}" in wrong([QUICKSTART], place, capsys)


def test_the_plan_is_printed_and_nothing_written(tiny, tmp_path, capsys, one_device):
    workdir = tmp_path / "run"
    assert train.main([f"--config={tiny}", f"--workdir={workdir}", "--dry_run", "--config.beta_end=2"]) == 0
    shown = capsys.readouterr().out
    assert "400 steps of 16 images: 133.3 epochs of 3 steps" in shown
    assert [line.split()[-1] for line in shown.splitlines()[-5:]] == ["0", "0.29289", "1", "1.7071", "2"]
    assert not workdir.exists()


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as stopped:
        train.main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    for flag in ("--config", "--workdir", "--dry_run", "--smoke", "--tensorboard", "--config.steps=2000"):
        assert flag in shown


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_ends_with_the_same_numbers(tiny, tmp_path):
    def command(workdir):
        return [sys.executable, "-m", "experiments.train", f"--config={tiny}", f"--workdir={workdir}"]

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    subprocess.run(command(whole), cwd=ROOT, check=True, capture_output=True, timeout=300)
    with subprocess.Popen(
        command(stopped), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        metrics = stopped / run_directory.METRICS
        while not (metrics.is_file() and metrics.read_text().count("\n") > 2):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=120)
    reached = store.latest_step(stopped / run_directory.CHECKPOINTS)
    assert reached is not None
    if process.returncode == 0:
        pytest.fail("the run was over before it could be interrupted: give it more steps")
    assert process.returncode == 130
    assert f"saved at step {reached} of 400" in shown.decode()
    again = subprocess.run(command(stopped), cwd=ROOT, check=True, capture_output=True, timeout=300)
    assert f"resuming after step {reached}" in again.stdout.decode()
    assert lines(stopped) == lines(whole)


def lines(run):
    found = [json.loads(line) for line in (run / run_directory.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "images_per_second")} for line in found]
