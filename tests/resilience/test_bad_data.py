"""A run with unreadable images: the same bits for any number of workers and interruptions."""

import json
import shutil

import numpy as np
import pytest
import trainings
from trainings import assert_same, lines, stopping

from byov_jax.cli import train
from byov_jax.data import registry
from byov_jax.errors import RunError
from byov_jax.model import load
from byov_jax.training import callbacks, run_directory
from byov_jax.training import trainer as runs

pytestmark = pytest.mark.usefixtures("quick")

BAD = {"train/a/3.jpg": b"", "train/b/7.jpg": b"these are words", "val/c/1.jpg": b"\xff\xd8\xff\xe0"}
STEPS = 7


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = trainings.write_photos(tmp_path_factory.mktemp("photos"))
    for name, content in BAD.items():
        (root / name).write_bytes(content)
    return root


def prepared(place, **changes):
    section = {"source": str(place), "loader": "stream", "workers": 0} | changes
    policy = section.get("on_error", "replace")
    data = registry.load_dataset(str(place), loader="stream", size=14, on_error=policy)
    return trainings.prepared(data, data=section, views={"name": "small_color", "size": 14}), data


@pytest.fixture
def whole(quick, finished, photos):
    """An uninterrupted run, trained once, and what it warned of."""
    workdir, said = finished
    if not workdir.exists():
        assert runs.train(*prepared(photos), workdir, callbacks.Callbacks(warning=said.append)) == (STEPS, 0)
    return finished


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "run", []


def test_every_bad_image_is_listed_and_warned_of_once(whole, photos):
    workdir, said = whole
    listed = [line.split("\t") for line in (workdir / run_directory.BAD_IMAGES).read_text().splitlines()]
    assert sorted(name for name, _ in listed) == sorted(str(photos / name) for name in BAD)
    for name, reason in listed:
        assert f"{name} cannot be read as an image ({reason}): it is replaced" in said
    assert said[-1] == f"3 images could not be read: see {workdir / run_directory.BAD_IMAGES}"
    assert len(said) == 4
    assert all(np.isfinite(line["loss"]) for line in lines(workdir)[1:])


def test_workers_change_nothing(whole, photos, tmp_path):
    config, data = prepared(photos, workers=1)
    assert runs.train(config, data, tmp_path / "run") == (STEPS, 0)
    assert_same(tmp_path / "run", whole[0])


def test_an_interruption_changes_nothing(whole, photos, tmp_path):
    workdir, said = tmp_path / "run", []
    runs.train(*prepared(photos), workdir, stopping(4, warning=said.append))
    runs.train(*prepared(photos), workdir, callbacks.Callbacks(warning=said.append))
    assert_same(workdir, whole[0])
    expected = (whole[0] / run_directory.BAD_IMAGES).read_text().splitlines()
    assert sorted((workdir / run_directory.BAD_IMAGES).read_text().splitlines()) == sorted(expected)
    assert sum("it is replaced" in text for text in said) == 3


def test_a_run_goes_on_where_its_data_have_moved_to(whole, photos, tmp_path):
    workdir, moved = tmp_path / "run", tmp_path / "elsewhere"
    runs.train(*prepared(photos), workdir, stopping(4))
    shutil.copytree(photos, moved)
    config, data = prepared(moved)
    assert runs.train(config, data, workdir) == (STEPS, 0)
    assert_same(workdir, whole[0])
    assert run_directory.read_config(workdir).data.source == str(moved)  # evaluate looks there

    (moved / "train/a/0.jpg").unlink()
    with pytest.raises(
        RunError, match=r"data\.digest is '\w+' there, '\w+' here .the images or labels are not"
    ):
        runs.train(*prepared(moved), workdir)


def test_a_run_from_before_there_were_digests_loads_and_goes_on(whole, photos, tmp_path):
    workdir = shutil.copytree(whole[0], tmp_path / "run")
    config = json.loads((workdir / run_directory.CONFIG).read_text())
    for name in ("digest", "on_error"):
        del config["data"][name]
    (workdir / run_directory.CONFIG).write_text(json.dumps(config))
    assert load(workdir).step == STEPS
    assert runs.train(*prepared(photos), workdir) == (STEPS, 0)
    assert_same(workdir, whole[0])


def test_on_error_raise_ends_the_run(photos, tmp_path):
    config, data = prepared(photos, on_error="raise")
    with pytest.raises(
        RunError, match=r"cannot be read as an image .*: repair the file, or set config.data.on_error"
    ):
        runs.train(config, data, tmp_path / "run")


def test_the_command_stops_with_one_line(photos, tmp_path, capsys):
    section = {"source": str(photos), "loader": "stream", "workers": 0}
    config = trainings.CONFIG | {"views": {"name": "small_color", "size": 14}, "data": section}
    (tmp_path / "config.py").write_text(f"def get_config(variant=''):\n    return {config!r}\n")
    argv = [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'run'}"]
    assert train.main([*argv, "--config.data.on_error=raise"]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert error.startswith(f"train: {photos}/")
    assert error.endswith("): repair the file, or set config.data.on_error=replace")
    assert train.main([*argv, "--config.data.on_error=ignore"]) == 2
    expected = "train: config.data.on_error='ignore' must be one of raise, replace\n"
    assert capsys.readouterr().err == expected
    assert train.main([*argv, "--config.data.on_error=replace"]) == 0  # the same run goes on
    assert "3 images could not be read" in capsys.readouterr().err


def test_a_change_of_the_folder_is_noticed(photos, tmp_path):
    place, said = shutil.copytree(photos, tmp_path / "photos"), []
    config, data = prepared(place)

    def step(number):
        if number == 2:
            (place / "train/a/5.jpg").unlink()

    listener = callbacks.Callbacks(step=step, warning=said.append)
    assert runs.train(config, data, tmp_path / "run", listener) == (STEPS, 0)
    assert sum(text.startswith(f"{place}/train/a has changed since the run began") for text in said) == 1
    assert any(text.startswith(f"{place}/train/a/5.jpg cannot be read") for text in said)
