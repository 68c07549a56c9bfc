"""Fixtures: checkpoints to damage; trainings on one device, every program built once."""

import gc
import shutil
import subprocess

import damaged_checkpoints
import pytest
import trainings

from byov_jax.training import trainer as runs


@pytest.fixture(scope="session")
def programs():
    """All programs, by config and devices."""
    return trainings.Programs()


@pytest.fixture
def quick(one_device, programs, monkeypatch):
    """Trains on one device, by programs that an earlier training has built."""
    monkeypatch.setattr(runs.build, "runner", programs)


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """A run that was saved before its first step, by the tiny config."""
    run = tmp_path_factory.mktemp("untrained") / "run"
    trainings.write_untrained(run)
    return run


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Three valid checkpoints."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    damaged_checkpoints.save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of them, to be damaged."""
    return shutil.copytree(saved, tmp_path / "checkpoints")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted by root")
    yield place
    subprocess.run(["umount", str(place)], check=True)
    gc.collect()  # while what orbax leaves behind is ignored
