"""The command that makes the embedded images: deterministic, and clear about what it lacks."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from byov_jax.data.sources import fashion_mnist
from tools import embed_fashion_mnist


def write_idx(path, array: np.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), compresslevel=1))


def unzipped(path) -> bytes:
    return gzip.decompress(path.read_bytes())


@pytest.fixture
def originals(tmp_path, monkeypatch):
    """A folder like the original one, with 30 random images of each class; 20 and 5 are to be kept."""
    monkeypatch.setattr(embed_fashion_mnist, "PER_CLASS", {"train": 20, "t10k": 5})
    rng = np.random.default_rng(0)
    folder = tmp_path / "idx"
    folder.mkdir()
    for split in ("train", "t10k"):
        write_idx(folder / f"{split}-images-idx3-ubyte.gz", rng.integers(0, 256, (300, 28, 28)))
        write_idx(folder / f"{split}-labels-idx1-ubyte.gz", rng.permutation(np.repeat(np.arange(10), 30)))
    return folder


def test_it_keeps_the_first_of_each_class_in_file_order(originals, tmp_path, capsys):
    out = tmp_path / "out.xz"
    assert embed_fashion_mnist.main([f"--idx={originals}", f"--out={out}"]) == 0
    assert hashlib.sha256(out.read_bytes()).hexdigest() in capsys.readouterr().out

    image = np.frombuffer(unzipped(originals / "train-images-idx3-ubyte.gz")[16:], np.uint8)
    label = unzipped(originals / "train-labels-idx1-ubyte.gz")[8:]
    seen = dict.fromkeys(range(10), 0)
    keep = []
    for place, c in enumerate(label):
        seen[c] += 1
        if seen[c] <= 20:
            keep.append(place)
    train = fashion_mnist.decode(out.read_bytes()).train
    np.testing.assert_array_equal(train.label, [label[place] for place in keep])
    np.testing.assert_array_equal(train.image, image.reshape(300, 28, 28, 1)[keep])


def test_the_same_input_gives_the_same_bytes(originals, tmp_path):
    for name in ("a", "b"):
        assert embed_fashion_mnist.main([f"--idx={originals}", f"--out={tmp_path / name}"]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_embedded_images_are_what_the_command_would_keep_of_them(tmp_path):
    train = fashion_mnist.load().train
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", train.image[..., 0])
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", train.label)
    kept = embed_fashion_mnist.first_of_each_class(tmp_path, "train", 1000)
    np.testing.assert_array_equal(kept.image, train.image)
    np.testing.assert_array_equal(kept.label, train.label)


def without_labels(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()


def with_too_few(folder):
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", np.arange(300) % 9)


def with_wrong_length(folder):
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", np.arange(299) % 10)


def with_garbage(folder):
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"not gzip")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (without_labels, "t10k-labels-idx1-ubyte.gz nor t10k-labels-idx1-ubyte"),
        (with_too_few, "t10k: 0 images of class Ankle boot, 5 are needed"),
        (with_wrong_length, "images (300, 28, 28) and labels (299,)"),
        (with_garbage, "neither an IDX file nor a gzipped one"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(originals, tmp_path, capsys, damage, problem):
    damage(originals)
    out = tmp_path / "out.xz"
    assert embed_fashion_mnist.main([f"--idx={originals}", f"--out={out}"]) == 2
    stderr = capsys.readouterr().err
    assert problem in stderr
    assert stderr.count("\n") == 1
    assert not out.exists()


def test_an_impossible_output_is_one_line_and_exit_code_2(originals, tmp_path, capsys):
    assert (
        embed_fashion_mnist.main([f"--idx={originals}", f"--out={tmp_path / 'no-such-folder' / 'out.xz'}"])
        == 2
    )
    assert "no-such-folder" in capsys.readouterr().err


def test_help_explains_both_flags(capsys):
    with pytest.raises(SystemExit) as end:
        embed_fashion_mnist.main(["--help"])
    assert end.value.code == 0
    stdout = capsys.readouterr().out
    assert all(word in stdout for word in ("--idx", "--out", "train-images-idx3-ubyte", "file order"))
