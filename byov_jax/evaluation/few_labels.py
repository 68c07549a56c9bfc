"""Few labels: which examples a probe may look at when only a fraction of them is labelled."""

import numpy as np
from jaxtyping import Array, Int64


def subset(
    labels: Array | np.ndarray, fraction: float, *, classes: int, seed: int = 0
) -> Int64[np.ndarray, "chosen"]:
    """Chooses `round(fraction * n_c)` of the `n_c` examples of each class, but at least one if there is any.

    Subsets of one seed are nested: 1% is contained in 10%. Which examples of a class are chosen depends on
    the seed, the class and `n_c` only. For a linear probe with few examples a class, give the penalty:
    `probe.linear(..., l2=...)`, since `probe.fit` chooses it on a fifth of each class, held out.

    Args:
      labels: `[n]`, integers from 0 to `classes - 1`.
      fraction: above 0, at most 1.
      classes: how many classes there are, in `labels` or not.
      seed: at least 0.

    Returns:
      The indices of the chosen examples, in increasing order.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be [n] integers, got {labels.shape} {labels.dtype}")
    if not len(labels) or labels.min() < 0 or labels.max() >= classes:
        found = f"{labels.min()} to {labels.max()}" if len(labels) else "none"
        raise ValueError(f"labels must be one or more of 0 to {classes - 1}, got {found}")
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"fraction={fraction}; allowed: above 0, at most 1")
    if seed < 0:
        raise ValueError(f"seed={seed}; allowed: 0 or more")
    return np.sort(np.concatenate([_of_class(labels, c, fraction, seed) for c in range(classes)]))


def _of_class(labels: np.ndarray, label: int, fraction: float, seed: int) -> Int64[np.ndarray, "chosen"]:
    places = np.flatnonzero(labels == label)
    count = max(round(fraction * len(places)), 1)
    # A larger fraction takes more of the same order: this is what nests the subsets.
    return np.random.default_rng([seed, label]).permutation(places)[:count]
