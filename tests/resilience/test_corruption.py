"""Every change of a checkpoint's files is detected; the newest valid one is used, and nothing is deleted."""

import errno
import os
import shutil

import pytest
from damaged_checkpoints import LIKE, STEPS, assert_is, assert_survived, contents, flip, resume, state
from trainings import DATA, assert_same, prepared, stopping

import byov_jax
from byov_jax.checkpoints import checkpointer, integrity, store
from byov_jax.errors import RunError
from byov_jax.training import callbacks, run_directory
from byov_jax.training import trainer as runs


def kinds(step):
    """One file of every kind that orbax writes, and the manifest; names of data files are random."""
    names = sorted(str(file.relative_to(step)) for file in step.rglob("*") if file.is_file())
    found = {os.path.join(os.path.dirname(name), "DATA") if _random(name) else name: name for name in names}
    assert {"manifest.json", "manifest.ocdbt", "_METADATA", "d/DATA", "ocdbt.process_0/d/DATA"} <= set(found)
    assert len(found) >= 9
    return list(found.values())


def _random(name):
    return len(os.path.basename(name)) == 32


def test_nothing_is_wrong_with_a_good_one(folder):
    found, warnings = resume(folder)
    assert_is(found, 9)
    assert warnings == []


@pytest.mark.parametrize("where", [0.0, 0.5, 0.999])
def test_one_flipped_bit_in_any_file(folder, where, tmp_path):
    for number, name in enumerate(kinds(folder / "9")):
        copy = shutil.copytree(folder, tmp_path / str(number))
        flip(copy / "9" / name, where)
        assert_survived(copy, "is damaged")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: os.truncate(file, file.stat().st_size // 2), "bytes, expected"),
        (lambda file: file.write_bytes(b""), "has 0 bytes, expected"),
        (lambda file: file.write_bytes(file.read_bytes() + b"\0"), "bytes, expected"),
        (lambda file: file.unlink(), "is missing"),
        (
            lambda file: (file.rename(f"{file}~"), file.symlink_to(f"{file}~")),
            "is neither a file nor a folder",
        ),
        (lambda file: (file.unlink(), os.mkfifo(file)), "is neither a file nor a folder"),
    ],
    ids=["cut", "empty", "longer", "missing", "link", "pipe"],
)
def test_a_changed_file(folder, tmp_path, damage, message):
    for number, name in enumerate(kinds(folder / "9")):
        copy = shutil.copytree(folder, tmp_path / str(number))
        damage(copy / "9" / name)
        found, warnings = resume(copy)
        assert_is(found, 6)
        (text,) = warnings
        if name != integrity.MANIFEST:
            assert name in text
            assert message in text
        else:
            assert "manifest.json" in text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda step: (step / "manifest.json").unlink(), "manifest.json is missing: saving was"),
        (
            lambda step: (shutil.rmtree(step), step.mkdir()),
            "manifest.json is missing: saving was",
        ),
        (lambda step: (step / "notes.txt").write_text("mine"), "notes.txt is not in manifest.json"),
        (lambda step: (step / "d" / "0").write_text(""), "d/0 is not in manifest.json"),
        (lambda step: shutil.rmtree(step / "d"), "is missing"),
        (lambda step: (shutil.rmtree(step), shutil.copytree(step.parent / "3", step)), "of step 3"),
    ],
    ids=["no manifest", "empty folder", "stray file", "stray data", "no data", "another step"],
)
def test_a_changed_folder(folder, damage, message):
    damage(folder / "9")
    assert_survived(folder, message)


def test_what_lies_beside_the_steps_is_left_alone(folder):
    (folder / "README").write_text("mine")
    (folder / "12").write_text("a file with the name of a step")
    (folder / "007").mkdir()
    (folder / "٣").mkdir()  # a decimal as well, for Python
    (folder / "15.orbax-checkpoint-tmp").mkdir()
    names = sorted(entry.name for entry in folder.iterdir())
    store.remove_leftovers(folder)
    found, warnings = resume(folder)
    assert_is(found, 9)
    assert warnings == []
    assert sorted(entry.name for entry in folder.iterdir()) == names
    checkpointer.save(folder, 12, state(12))
    assert_is(resume(folder)[0], 12)
    assert (folder / "set_aside" / "12").read_text() == "a file with the name of a step"


def test_what_a_killed_process_left_is_cleared_away(folder):
    for name in ("12.unfinished", "12.unfinished.orbax-checkpoint-tmp", "3.retired"):
        shutil.copytree(folder / "3", folder / name)
    found, warnings = resume(folder)
    assert_is(found, 9)
    assert warnings == []
    store.remove_leftovers(folder)
    assert sorted(entry.name for entry in folder.iterdir()) == ["3", "6", "9"]


@pytest.mark.parametrize("damaged", ["manifest.json", "_METADATA"])
def test_a_file_that_may_not_be_read(folder, damaged, monkeypatch):
    """Simulated: to root everything is permitted."""
    forbidden = folder / "9" / damaged
    path_open = type(forbidden).open

    def opened(file, *arguments, **options):
        if file == forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return path_open(file, *arguments, **options)

    monkeypatch.setattr(type(forbidden), "open", opened)
    found, warnings = resume(folder)
    assert_is(found, 6)
    assert damaged in warnings[0]
    assert "cannot be read (Permission denied)" in warnings[0]


def test_a_step_that_cannot_be_moved(folder, monkeypatch):
    flip(folder / "9" / "_METADATA")

    def refuse(*paths):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), *map(str, paths))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        found, warnings = resume(folder)
    assert_is(found, 6)
    assert warnings[0].endswith("; it could not be moved (Permission denied)")
    assert_is(resume(folder)[0], 6)


def test_two_bad_ones_go_aside_and_so_does_a_second_of_the_same_step(folder):
    flip(folder / "9" / "_METADATA")
    os.truncate(folder / "6" / "manifest.ocdbt", 5)
    found, warnings = resume(folder)
    assert_is(found, 3)
    assert [text.split(" failed")[0] for text in warnings] == [f"checkpoint {folder / step}" for step in "96"]
    checkpointer.save(folder, 6, state(6))
    flip(folder / "6" / "_METADATA")
    assert_is(resume(folder)[0], 3)
    assert sorted(entry.name for entry in (folder / "set_aside").iterdir()) == ["6", "6.1", "9"]


def test_if_none_is_sound_nothing_is_overwritten(folder):
    for step in STEPS:
        flip(folder / str(step) / "_METADATA")
    before = contents(folder)
    for reader in (
        lambda: checkpointer.restore_newest(folder, LIKE),
        lambda: resume(folder),
        lambda: resume(folder),
    ):
        with pytest.raises(RunError, match=r"no valid checkpoint in .*nothing was overwritten") as error:
            reader()
        assert "\n" not in str(error.value)
    assert contents(folder) == before
    shutil.move(folder / "set_aside" / "6", folder / "6")
    flip(folder / "6" / "_METADATA")  # it is repaired
    assert_is(resume(folder)[0], 6)


@pytest.mark.usefixtures("quick")
def test_a_run_goes_on_from_the_newest_good_state_to_the_same_bits(tmp_path):
    config, whole, damaged = prepared(save_every=4), tmp_path / "whole", tmp_path / "damaged"
    assert runs.train(config, DATA, whole) == (7, 0)
    runs.train(config, DATA, damaged, stopping(5))
    folder = damaged / run_directory.CHECKPOINTS
    assert store.steps(folder) == [2, 4, 5]
    flip(folder / "5" / "manifest.ocdbt")
    shutil.rmtree(folder / "4" / "d")
    assert byov_jax.load(damaged).step == 2
    assert store.steps(folder) == [2, 4, 5]
    warnings = []
    assert runs.train(config, DATA, damaged, callbacks.Callbacks(warning=warnings.append)) == (7, 0)
    assert len(warnings) == 2
    assert_same(damaged, whole)


@pytest.mark.usefixtures("quick")
def test_a_run_without_a_good_state_does_not_begin_again(tmp_path):
    config, workdir = prepared(), tmp_path / "run"
    runs.train(config, DATA, workdir, stopping(5))
    before = {file: file.read_bytes() for file in workdir.glob("*.json*")}
    for step in store.steps(workdir / run_directory.CHECKPOINTS):
        flip(workdir / run_directory.CHECKPOINTS / str(step) / "_METADATA")
    files = contents(workdir)
    for _ in range(2):
        with pytest.raises(RunError, match="nothing was overwritten"):
            runs.train(config, DATA, workdir)
    assert contents(workdir) == files
    assert {file: file.read_bytes() for file in before} == before
