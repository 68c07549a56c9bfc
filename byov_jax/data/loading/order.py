"""The order of the data as a pure function of (seed, step), so that a resumed run sees the same batches."""

from functools import lru_cache

import numpy as np
from jaxtyping import Int


def batch_indices(seed: int, step: int, size: int, batch: int) -> Int[np.ndarray, "batch"]:
    """Which of `size` images make up the global batch of `step`: read-only indices [batch].

    The images come as one stream, a fresh permutation of all of them for every epoch, and the batch of step s
    is its positions `s * batch` to `(s + 1) * batch - 1`. So each image appears exactly once an epoch; where
    the batch does not divide the size, a batch ends one epoch and begins the next.
    """
    if seed < 0 or step < 0:
        raise ValueError(f"seed and step must be 0 or more, got seed={seed}, step={step}")
    if not 1 <= batch <= size:
        raise ValueError(f"batch must be between 1 and the {size} images there are, got {batch}")
    epoch, position = divmod(step * batch, size)
    indices = _permutation(seed, epoch, size)[position : position + batch]
    if len(indices) < batch:
        rest = _permutation(seed, epoch + 1, size)[: batch - len(indices)]
        indices = np.concatenate([indices, rest])
        indices.flags.writeable = False
    return indices


@lru_cache(maxsize=3)  # threads that read ahead may be on both sides of an epoch's end
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    # NumPy promises the raw bits of Philox for all its versions, but not the algorithm of permutation().
    bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(size)
    permutation = np.argsort(bits, kind="stable")
    permutation.flags.writeable = False  # the cache hands the same array to every caller
    return permutation
