"""The manifest of a folder: every later change is detected and named."""

import hashlib
import json

import pytest

from byov_jax.checkpoints import integrity


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    (path / "deep" / "er").mkdir(parents=True)
    (path / "a").write_bytes(b"abc")
    (path / "deep" / "er" / "b").write_bytes(b"")
    return path


def test_the_manifest_lists_every_file_with_size_and_checksum(folder):
    integrity.write(folder, {"step": 7})
    manifest = json.loads((folder / integrity.MANIFEST).read_text())
    assert manifest["files"] == {
        "a": {"size": 3, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        "deep/er/b": {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()},
    }
    assert integrity.read(folder)["about"] == {"step": 7}
    assert integrity.exists(folder)
    assert integrity.find_damage(folder) is None
    assert sorted(file.name for file in folder.iterdir()) == ["a", "deep", "manifest.json"]


def test_a_missing_manifest_is_reported(folder):
    assert not integrity.exists(folder)
    assert integrity.find_damage(folder) == "manifest.json is missing: saving was interrupted"
    with pytest.raises(ValueError, match="saving was interrupted"):
        integrity.read(folder)
    assert integrity.find_damage(folder / "nowhere") == "manifest.json is missing: saving was interrupted"
    (folder / integrity.MANIFEST).mkdir()
    assert not integrity.exists(folder)
    assert integrity.find_damage(folder) == "manifest.json cannot be read (Is a directory)"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "a").write_bytes(b"abd"), "a is damaged"),
        (lambda folder: (folder / "a").write_bytes(b"abcd"), "a has 4 bytes, expected 3"),
        (lambda folder: (folder / "deep/er/b").unlink(), "deep/er/b is missing"),
        (lambda folder: (folder / "deep/c").write_text(""), "deep/c is not in manifest.json"),
        (
            lambda folder: (folder / "deep" / integrity.MANIFEST).write_text(""),
            "deep/manifest.json is not",
        ),
        (lambda folder: (folder / "c").symlink_to("a"), "c is neither a file nor a folder"),
        (lambda folder: (folder / "c").symlink_to("nothing"), "c is neither a file nor a folder"),
        (lambda folder: (folder / "c").symlink_to("deep"), "c is neither a file nor a folder"),
    ],
)
def test_damage_is_named(folder, change, problem):
    integrity.write(folder, {})
    change(folder)
    assert integrity.find_damage(folder).startswith(problem)


def test_the_checksum_covers_the_metadata(folder):
    integrity.write(folder, {"step": 7})
    file = folder / integrity.MANIFEST
    file.write_text(file.read_text().replace('"step": 7', '"step": 8'))
    assert integrity.find_damage(folder) == "manifest.json is damaged"


def test_every_bit_of_the_manifest_is_verified(folder):
    integrity.write(folder, {"step": 7, "config": {"widths": (8, 4), "rate": 0.1}})
    assert integrity.read(folder)["about"]["config"] == {"widths": [8, 4], "rate": 0.1}
    file = folder / integrity.MANIFEST
    good = file.read_bytes()
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        assert integrity.find_damage(folder) is not None, bit
    file.write_text(json.dumps(json.loads(good)))
    assert integrity.find_damage(folder) == "manifest.json is damaged"
