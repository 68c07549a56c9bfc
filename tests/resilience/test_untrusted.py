"""A run directory of somebody else: nothing of it is executed, and nothing outside of it is touched."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from damaged_checkpoints import assert_survived, contents, resume, seal
from trainings import DATA

import byov_jax
from byov_jax.checkpoints import integrity
from byov_jax.errors import RunError
from byov_jax.report import runs as reported
from byov_jax.training import run_directory
from byov_jax.training import trainer as runs


@pytest.mark.parametrize("name", ["../6/_METADATA", "/etc/passwd", "relative", ""])
def test_a_manifest_cannot_name_what_is_elsewhere(folder, name):
    """With every checksum right: whoever made it knew how."""
    name = os.path.relpath("/etc/passwd", folder / "9") if name == "relative" else name
    file = folder / "9" / integrity.MANIFEST
    body = json.loads(file.read_text())
    target = folder / "9" / name
    digest = hashlib.sha256(target.read_bytes()).hexdigest() if target.is_file() else ""
    size = target.stat().st_size
    body["files"][name] = {"size": size, "sha256": digest}
    seal(file, body)
    assert_survived(folder, f"{name} is missing")


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": {"_METADATA": 3}},
        {"files": {"_METADATA": {}}},
        {"about": None},
        {"about": "step 9"},
        {"version": {"sha256": 1}},
    ],
)
def test_a_manifest_of_another_shape(folder, change):
    file = folder / "9" / integrity.MANIFEST
    seal(file, json.loads(file.read_text()) | change)
    assert_survived(folder, "manifest.json is")


def test_a_manifest_of_another_version_says_so(folder):
    file = folder / "9" / integrity.MANIFEST
    seal(file, json.loads(file.read_text()) | {"version": 2})
    assert_survived(folder, "manifest.json is of version 2, expected 1")


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"', "[" * 100_000, "\xff", '{"sha256": NaN}'])
def test_a_manifest_that_is_no_manifest(folder, text):
    (folder / "9" / integrity.MANIFEST).write_text(text, encoding="latin-1")
    assert_survived(folder, "manifest.json is damaged")


def test_a_step_cannot_be_a_link(folder, tmp_path):
    """Not even to a good one: what is deleted here would be deleted there."""
    elsewhere = shutil.move(folder / "9", tmp_path / "9")
    (folder / "9").symlink_to(elsewhere)
    before = contents(elsewhere)
    assert_survived(folder, "it is a symbolic link")
    assert (folder / "set_aside" / "9").is_symlink()
    assert contents(elsewhere) == before


def test_a_folder_of_a_step_cannot_be_a_link(folder, tmp_path):
    elsewhere = shutil.move(folder / "9" / "d", tmp_path / "d")
    (folder / "9" / "d").symlink_to(elsewhere)
    before = contents(elsewhere)
    assert_survived(folder, "d is neither a file nor a folder")
    assert contents(elsewhere) == before


def test_a_checkpoint_cannot_name_what_is_to_be_imported(folder):
    """Orbax writes down the class that wrote it; nobody must look it up."""
    file = folder / "9" / "_CHECKPOINT_METADATA"
    file.write_text(file.read_text().replace("orbax.checkpoint._src.handlers", "antigravity.nowhere"))
    about = integrity.read(folder / "9")["about"]
    (folder / "9" / integrity.MANIFEST).unlink()
    integrity.write(folder / "9", about)
    found, warnings = resume(folder)
    assert int(found["step"]) == 9
    assert warnings == []


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.fixture
def run(untrained, tmp_path):
    """A run that somebody else has sent."""
    return shutil.copytree(untrained, tmp_path / "run")


def test_nothing_is_unpickled(run, tmp_path):
    bomb = np.array([Bomb(tmp_path / "exploded")], object)
    arrays = dict.fromkeys(("step", "weight", "bias", "mean", "std"), bomb)
    for place in (run / run_directory.PROBE, run / run_directory.ARRAYS / "calibration.npz"):
        place.parent.mkdir(exist_ok=True)
        np.savez(place, **arrays)
    with pytest.raises(RunError, match=r"probe\.npz cannot be read as \.npz: Object arrays cannot be loaded"):
        byov_jax.load(run)
    with pytest.raises(RunError, match=r"calibration\.npz cannot be read as \.npz: Object arrays cannot"):
        reported.read(run).arrays("calibration")
    for place in (
        run / run_directory.PROBE,
        run / run_directory.ARRAYS / "calibration.npz",
        run / run_directory.CONFIG,
    ):
        place.write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
        with pytest.raises(RunError, match="cannot be read"):
            byov_jax.load(run) if place.parent == run else reported.read(run).arrays("calibration")
    assert not (tmp_path / "exploded").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert (tmp_path / "exploded").exists()  # else the test shows nothing


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("where", "__import__('os').system('touch exploded')"),
        ("method", "__class__"),
        ("prior", "__init__"),
        ("encoder", {"name": "ViT", "dtype": "os.system"}),
        ("views", {"name": "small_gray", "size": "__import__('os')"}),
        ("optimizer", {"name": "adamw", "learning_rate": {"__reduce__": 1}, "warmup": 0}),
        ("steps", {"py/object": "os.system"}),
        ("data", []),
        ("projector", {"widths": "10 ** 10"}),
    ],
)
def test_a_config_is_data(run, key, value, tmp_path, monkeypatch):
    """Also where no checkpoint says what it was."""
    monkeypatch.chdir(tmp_path)
    file = run / run_directory.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):
        with pytest.raises(RunError) as error:
            byov_jax.load(run)
        assert str(error.value).startswith(str(run))
        assert "\n" not in str(error.value)
        strip_config(run / run_directory.CHECKPOINTS / "0")
    assert sorted(tmp_path.rglob("*")) == before


def strip_config(step):
    """A state with which no config is kept."""
    (step / integrity.MANIFEST).unlink()
    integrity.write(step, {"step": int(step.name)})


def test_a_config_that_was_changed_is_noticed(run):
    """Even where the network is the same: other views would silently give other features."""
    file = run / run_directory.CONFIG
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"views": config["views"] | {"flip": 0.3}}))
    with pytest.raises(RunError, match=r"config\.json was changed: views\.flip is 0\.3, and was None in the"):
        byov_jax.load(run)
    file.write_text(json.dumps(config | {"watchdog": 7.0}))  # this makes no difference
    assert byov_jax.load(run).step == 0


@pytest.mark.parametrize(
    "name", [run_directory.CONFIG, run_directory.METRICS, run_directory.CHECKPOINTS, "tensorboard"]
)
def test_the_files_of_a_run_cannot_be_elsewhere(run, name, tmp_path):
    config, place = run_directory.read_config(run), run / name
    if place.exists():
        shutil.move(place, tmp_path / name)
    place.symlink_to(tmp_path / name)  # there may be nothing there yet, to be written to
    message = f"{name} leads out of the run directory: link the whole directory instead"
    for read in (byov_jax.load, reported.read, lambda run: runs.train(config, DATA, run)):
        with pytest.raises(RunError, match=message):
            read(run)
    place.unlink()
    if (tmp_path / name).exists():
        shutil.move(tmp_path / name, place)
    (tmp_path / "link").symlink_to(run)
    assert byov_jax.load(tmp_path / "link").step == 0
