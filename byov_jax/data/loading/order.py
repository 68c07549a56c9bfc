"""The order of the data as a pure function of (seed, step): a resumed run gets the same batches."""

from functools import lru_cache

import numpy as np
from jaxtyping import Int


def batch_indices(seed: int, step: int, size: int, batch: int) -> Int[np.ndarray, "batch"]:
    """Return which of `size` images make up the global batch of `step`: read-only indices [batch].

    The images form one stream, a new permutation for each epoch; step s takes positions `s * batch` to
    `(s + 1) * batch - 1`. Each image appears exactly once per epoch, and where the batch does not divide the
    size, a batch spans two epochs.
    """
    if seed < 0 or step < 0:
        raise ValueError(f"seed and step must be 0 or more, got seed={seed}, step={step}")
    if not 1 <= batch <= size:
        raise ValueError(f"batch must be between 1 and {size}, the number of images, got {batch}")
    epoch, position = divmod(step * batch, size)
    indices = _permutation(seed, epoch, size)[position : position + batch]
    if len(indices) < batch:
        rest = _permutation(seed, epoch + 1, size)[: batch - len(indices)]
        indices = np.concatenate([indices, rest])
        indices.flags.writeable = False
    return indices


@lru_cache(maxsize=3)  # threads that prefetch may be on both sides of an epoch boundary
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    # NumPy guarantees the raw bits of Philox across versions, but not the algorithm of permutation().
    bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(size)
    permutation = np.argsort(bits, kind="stable")
    permutation.flags.writeable = False  # the cache returns the same array to every caller
    return permutation
