"""`byov prepare`: output, problems that --check finds, exit codes, interruption."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from data import photos

from byov_jax.cli import prepare
from byov_jax.data import registry, verify

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    return photos.write_folder(tmp_path / "photos")


@pytest.fixture
def prepared(folder, tmp_path):
    assert prepare.main([f"--source={folder}", f"--out={tmp_path / 'out'}", "--shard_size=5"]) == 0
    return tmp_path / "out"


def error_of(capsys, *arguments) -> str:
    capsys.readouterr()
    assert prepare.main([*arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error.removeprefix("prepare: ").strip()


def test_it_prints_what_it_wrote_and_how_to_check_it(folder, tmp_path, capsys):
    assert prepare.main([f"--source={folder}", f"--out={tmp_path / 'out'}", "--shard_size=5"]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'out'}: 12 train and 5 test images in 4 files; "
        f"byov prepare --check={tmp_path / 'out'}\n"
    )


def test_tar_files_are_prepared_as_well(prepared, tmp_path):
    tars = photos.write_tars(tmp_path / "tars")
    assert prepare.main([f"--source={tars}", f"--out={tmp_path / 'other'}"]) == 0
    one, other = (
        registry.open_dataset(str(prepared)).train,
        registry.open_dataset(str(tmp_path / "other")).train,
    )
    assert [one[i] for i in range(12)] == [other[i] for i in range(12)]


@pytest.mark.parametrize("kind", ["folder", "tars", "prepared"])
def test_a_good_data_set_passes_the_check(kind, folder, prepared, tmp_path, capsys):
    place = {"folder": folder, "tars": photos.write_tars(tmp_path / "tars"), "prepared": prepared}[kind]
    capsys.readouterr()
    assert prepare.main([f"--check={place}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{place}: 3 classes; test images from ")
    assert ("checksums: 4 of 4 files are unchanged" in lines) == (kind == "prepared")
    assert lines[-3:] == [
        "train: 12 images of 3 classes: n01440764 (3), n01443537 (5), n02084071 (4)",
        "test: 5 images of 3 classes: n01440764 (2), n01443537 (1), n02084071 (2)",
        "no problems found",
    ]


def test_arrays_and_unlabelled_images_can_be_checked(folder, tmp_path, capsys):
    image, label = np.zeros((40, 3, 3, 1), np.uint8), np.arange(40) % 30
    names = ("train_image", "train_label", "test_image", "test_label")
    np.savez(tmp_path / "a.npz", **dict(zip(names, (image, label, image, label), strict=True)))
    assert prepare.main([f"--check={tmp_path / 'a.npz'}"]) == 0
    assert "train: 40 images of 30 classes, from 10 (1) to 9 (2)\n" in capsys.readouterr().out
    assert prepare.main([f"--check={folder / 'train' / 'n01443537'}"]) == 0
    assert "images, no labels\n" in capsys.readouterr().out


def test_unreadable_images_are_named(folder, capsys):
    (folder / "train/n01440764/n01440764_1.JPEG").write_bytes(b"no image")
    broken = folder / "val/n02084071/ILSVRC2012_val_00000017.JPEG"
    broken.write_bytes(broken.read_bytes()[:300])
    assert prepare.main([f"--check={folder}"]) == 1
    output = capsys.readouterr()
    assert output.out.endswith("2 problems\n")
    assert f"{folder}/train/n01440764/n01440764_1.JPEG cannot be read as an image (it is none" in output.err
    assert f"{broken} cannot be read as an image (Truncated File Read" in output.err


def test_a_damaged_shard_is_found(prepared, capsys):
    shard = prepared / "train-00001-of-00003.array_record"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert prepare.main([f"--check={prepared}"]) == 1
    output = capsys.readouterr()
    assert "checksums: 3 of 4 files are unchanged" in output.out
    assert f"{shard} is damaged: its SHA-256 is not that of dataset.json" in output.err
    shard.unlink()
    assert prepare.main([f"--check={prepared}"]) == 1
    assert f"{shard}: No such file or directory" in capsys.readouterr().err


def test_wrong_labels_are_found(prepared, capsys):
    file = prepared / "dataset.json"
    about = file.read_text()
    file.write_text(about.replace('"label": [0, 0, 1, 2, 2]', '"label": [0, 1, 1, 2, 2]'))
    assert prepare.main([f"--check={prepared}"]) == 1
    assert "val_00000014.JPEG in " in (error := capsys.readouterr().err)
    assert "has the label 0, dataset.json says 1" in error
    file.write_text(about.replace(', "n02084071"]', "]"))
    assert prepare.main([f"--check={prepared}"]) == 1
    assert "has the label 2, there are 2 classes" in capsys.readouterr().err


def test_many_problems_are_counted(tmp_path, capsys):
    for i in range(30):
        (tmp_path / f"{i}.png").write_bytes(b"no image")
    assert prepare.main([f"--check={tmp_path}"]) == 1
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == prepare.SHOWN + 1
    assert output.err.endswith("... and 10 more\n")
    assert output.out.endswith("30 problems\n")


def test_threads_find_what_one_finds(folder):
    (folder / "train/n01440764/n01440764_1.JPEG").write_bytes(b"no image")
    data = registry.open_dataset(str(folder)).train
    alone = list(verify.check_images(data, 3, threads=1))
    together = list(verify.check_images(data, 3, threads=2))
    assert [part.problems for part in together] == [part.problems for part in alone]
    np.testing.assert_array_equal(together[0].label, alone[0].label)
    assert together[0].label.tolist() == [0, -2, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give either --source=FOLDER and --out=DIR, or --check=SOURCE"),
        (["--source=a", "--check=b"], "give either --source=FOLDER and --out=DIR, or --check=SOURCE"),
        (["--source=a"], "--source=FOLDER and --out=DIR belong together"),
        (["--check=a", "--out=b"], "--source=FOLDER and --out=DIR belong together"),
        (["--source=a", "--out=b", "--shard_size=0"], "--shard_size=0 must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, problem, capsys):
    with pytest.raises(SystemExit) as stopped:
        prepare.main(arguments)
    assert stopped.value.code == 2
    assert problem in capsys.readouterr().err


def test_wrong_places_are_refused_and_nothing_is_written(folder, prepared, tmp_path, capsys):
    out = tmp_path / "new"
    assert error_of(capsys, f"--source={tmp_path}/nowhere", f"--out={out}").startswith("data '")
    assert error_of(capsys, "--check=nowhere").startswith("data 'nowhere' is neither 'fashion_mnist'")
    assert error_of(capsys, "--source=fashion_mnist", f"--out={out}").endswith("there is nothing to prepare")
    assert error_of(capsys, f"--source={folder}", f"--out={folder}").startswith(f"{folder} is not empty")
    assert error_of(capsys, f"--source={folder}", f"--out={prepared}") == (
        f"{prepared} was started with a different shard_size: delete it, or write to another folder"
    )
    assert not out.exists()


@pytest.mark.slow
def test_after_a_kill_it_resumes(tmp_path):
    photo = photos.encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    for i in range(3000):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{i}.jpg").write_bytes(photo)
    arguments = [f"--source={tmp_path / 'photos'}", f"--out={tmp_path / 'out'}", "--shard_size=20"]
    process = subprocess.Popen([sys.executable, "-m", "experiments.prepare", *arguments], cwd=ROOT)
    while len(list(tmp_path.glob("out/*.array_record.json"))) < 3 and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.glob("out/*.array_record")}
    assert 3 <= len(kept) < 151
    assert error_code(tmp_path / "out") == 2
    assert prepare.main(arguments) == 0
    noted = [file for file in kept if file.stat().st_mtime_ns == kept[file]]
    assert len(noted) >= len(kept) - 1  # but for one that was finished and not yet noted
    assert error_code(tmp_path / "out") == 0


def error_code(place) -> int:
    return prepare.main([f"--check={place}"])
