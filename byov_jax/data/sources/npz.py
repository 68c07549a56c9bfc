"""Data sets in one .npz file."""

from pathlib import Path

from byov_jax import files
from byov_jax.data.dataset import Dataset, from_arrays

ARRAYS = ("train_image", "train_label", "test_image", "test_label")


def load(file: Path) -> Dataset:
    """Load an .npz file that holds `ARRAYS` and, optionally, `classes`, the class names.

    Images are uint8 [n, height, width, channels], labels integers [n].
    """
    arrays = files.read_npz(file)
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise ValueError(f"{file} lacks {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    train_image, train_label, test_image, test_label = (arrays[name] for name in ARRAYS)
    return from_arrays(file, train_image, train_label, test_image, test_label, arrays.get("classes"))
