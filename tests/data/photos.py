"""A small data set of image files, as a folder and as the original tar files of ImageNet have it."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

CLASSES = ("n01440764", "n01443537", "n02084071")
IDS = {"n01443537": 1, "n02084071": 2, "n01440764": 3}
"""The devkit numbers the classes in an order of its own."""

COUNTS = {"train": (3, 5, 4), "val": (2, 1, 2)}


def images() -> dict[str, dict[str, bytes]]:
    """The bytes of every image, by split and by `CLASS/NAME`."""
    rng = np.random.default_rng(0)
    found: dict[str, dict[str, bytes]] = {split: {} for split in COUNTS}
    number = 0
    for split, counts in COUNTS.items():
        for name, count in zip(CLASSES, counts, strict=True):
            for i in range(count):
                number += 1
                file = f"{name}_{i}" if split == "train" else f"ILSVRC2012_val_{number:08}"
                pixels = rng.integers(0, 256, (8 + i, 12, 3), np.uint8)
                found[split][f"{name}/{file}.JPEG"] = encoded(pixels)
    return found


def encoded(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def write_folder(root: Path) -> Path:
    for split, files in images().items():
        for name, content in files.items():
            (root / split / name).parent.mkdir(parents=True, exist_ok=True)
            (root / split / name).write_bytes(content)
    return root


def write_tars(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    found = images()
    groups = {
        name: [(file.split("/")[1], content) for file, content in found["train"].items() if name in file]
        for name in reversed(CLASSES)
    }
    classes = [(f"{name}.tar", tar(members)) for name, members in groups.items()]
    (root / "ILSVRC2012_img_train.tar").write_bytes(tar(classes))
    validation = [(file.split("/")[1], content) for file, content in found["val"].items()]
    (root / "ILSVRC2012_img_val.tar").write_bytes(tar(validation[::-1]))
    order = sorted(found["val"], key=lambda name: name.split("/")[1])
    write_devkit(root, [IDS[name.split("/")[0]] for name in order])
    return root


def write_devkit(root: Path, truth: list[int]) -> None:
    """With the classes above the others in WordNet's tree, as in the original."""
    rows = [(number, name, "words", 0) for name, number in IDS.items()] + [(4, "n00001740", "entity", 3)]
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array(rows, kind)[:, None]})
    files = [
        ("ILSVRC2012_devkit_t12/data/meta.mat", meta.getvalue()),
        (
            "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
            "".join(f"{number}\n" for number in truth).encode(),
        ),
    ]
    (root / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(tar(files, "w:gz"))


def tar(files: list[tuple[str, bytes]], mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()
