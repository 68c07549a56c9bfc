"""The manifest of a folder: sealed, it is sound; whatever is changed afterwards is found and named."""

import hashlib
import json

import pytest

from byov_jax.checkpoints import integrity


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "folder"
    (place / "deep" / "er").mkdir(parents=True)
    (place / "a").write_bytes(b"abc")
    (place / "deep" / "er" / "b").write_bytes(b"")
    return place


def test_it_lists_every_file_with_its_size_and_checksum(folder):
    integrity.write(folder, {"step": 7})
    found = json.loads((folder / integrity.FILE).read_text())
    assert found["files"] == {
        "a": {"size": 3, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        "deep/er/b": {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()},
    }
    assert integrity.read(folder)["about"] == {"step": 7}
    assert integrity.exists(folder)
    assert integrity.find_damage(folder) is None
    assert sorted(file.name for file in folder.iterdir()) == ["a", "deep", "manifest.json"]


def test_what_is_not_sealed_says_so(folder):
    assert not integrity.exists(folder)
    assert integrity.find_damage(folder) == "it has no manifest.json: it was not finished"
    with pytest.raises(ValueError, match="it was not finished"):
        integrity.read(folder)
    assert integrity.find_damage(folder / "nowhere") == "it has no manifest.json: it was not finished"
    (folder / integrity.FILE).mkdir()
    assert not integrity.exists(folder)
    assert integrity.find_damage(folder) == "its manifest.json cannot be read (Is a directory)"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "a").write_bytes(b"abd"), "a is damaged"),
        (lambda folder: (folder / "a").write_bytes(b"abcd"), "a has 4 bytes, expected 3"),
        (lambda folder: (folder / "deep/er/b").unlink(), "deep/er/b is missing"),
        (lambda folder: (folder / "deep/c").write_text(""), "deep/c does not belong to it"),
        (lambda folder: (folder / "deep" / integrity.FILE).write_text(""), "deep/manifest.json does not"),
        (lambda folder: (folder / "c").symlink_to("a"), "c is neither a file nor a folder"),
        (lambda folder: (folder / "c").symlink_to("nothing"), "c is neither a file nor a folder"),
        (lambda folder: (folder / "c").symlink_to("deep"), "c is neither a file nor a folder"),
    ],
)
def test_what_is_wrong_is_named(folder, change, problem):
    integrity.write(folder, {})
    change(folder)
    assert integrity.find_damage(folder).startswith(problem)


def test_what_it_says_about_the_folder_is_sealed_as_well(folder):
    integrity.write(folder, {"step": 7})
    file = folder / integrity.FILE
    file.write_text(file.read_text().replace('"step": 7', '"step": 8'))
    assert integrity.find_damage(folder) == "its manifest.json is damaged"


def test_every_bit_of_the_manifest_counts(folder):
    integrity.write(folder, {"step": 7, "config": {"widths": (8, 4), "rate": 0.1}})
    assert integrity.read(folder)["about"]["config"] == {"widths": [8, 4], "rate": 0.1}
    file = folder / integrity.FILE
    good = file.read_bytes()
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        assert integrity.find_damage(folder) is not None, bit
    file.write_text(json.dumps(json.loads(good)))
    assert integrity.find_damage(folder) == "its manifest.json is damaged"
