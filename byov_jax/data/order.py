"""The order of the data as a pure function of (seed, step), so that a resumed run sees the same batches."""

from functools import lru_cache

import numpy as np
from jaxtyping import Int


def batch_indices(seed: int, step: int, size: int, batch: int) -> Int[np.ndarray, "batch"]:
    """Which of `size` images make up the global batch of `step`: read-only indices [batch].

    Each epoch is a fresh permutation cut into `size // batch` batches; its remainder is dropped, so an
    image appears at most once an epoch.
    """
    if seed < 0 or step < 0:
        raise ValueError(f"seed and step must be 0 or more, got seed={seed}, step={step}")
    if not 1 <= batch <= size:
        raise ValueError(f"batch must be between 1 and the {size} images there are, got {batch}")
    epoch, position = divmod(step, size // batch)
    return _permutation(seed, epoch, size)[position * batch : (position + 1) * batch]


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    # NumPy promises the raw bits of Philox for all its versions, but not the algorithm of permutation().
    bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(size)
    permutation = np.argsort(bits, kind="stable")
    permutation.flags.writeable = False  # the cache hands the same array to every caller
    return permutation
