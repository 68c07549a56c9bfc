"""A digest that identifies a data set wherever it is stored."""

import hashlib
from functools import lru_cache

import numpy as np

from byov_jax.data.dataset import ArraySource, Images, UnlabelledImages
from byov_jax.data.loading.lazy import LazyImages


def of_images(*splits: Images | UnlabelledImages) -> str:
    """Return 16 hexadecimal digits that identify images and labels.

    Hashes the pixels of images in memory, and the base names of images that are decoded on demand. Labels
    that are unknown until the images are read are left out.
    """
    result = hashlib.sha256()
    for image, label in splits:
        result.update(_digest_names(image) if isinstance(image, LazyImages) else _digest_pixels(image))
        if isinstance(label, np.ndarray):
            result.update(np.ascontiguousarray(label, np.int32).data)
    return result.hexdigest()[:16]


@lru_cache(maxsize=4)  # a sweep asks once per run
def _digest_names(image: LazyImages) -> bytes:
    source = image.source
    if isinstance(source, ArraySource):
        return _digest_pixels(source.image)
    if hasattr(source, "file_names"):
        names: list[bytes] = source.file_names()
    else:
        names = [source.name(i).encode(errors="surrogateescape") for i in range(len(source))]
    return hashlib.sha256(b"\0".join(names)).digest()


def _digest_pixels(image: np.ndarray) -> bytes:
    result = hashlib.sha256(repr((image.shape, str(image.dtype))).encode())
    result.update(np.ascontiguousarray(image).data)
    return result.digest()
