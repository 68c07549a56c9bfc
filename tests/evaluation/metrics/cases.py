"""Predictions for tests of metrics: ten by hand, and thousands that any version of NumPy draws alike."""

import functools

import numpy as np

COUNT, N, CLASSES, BINS = 2400, 64, 4, 16

P = np.array(
    [
        [0.91, 0.05, 0.04],
        [0.81, 0.14, 0.05],
        [0.62, 0.28, 0.10],
        [0.45, 0.35, 0.20],
        [0.10, 0.85, 0.05],
        [0.24, 0.71, 0.05],
        [0.30, 0.52, 0.18],
        [0.05, 0.03, 0.92],
        [0.20, 0.15, 0.65],
        [0.33, 0.31, 0.36],
    ]
)
Y = np.array([0, 0, 1, 0, 1, 1, 2, 2, 2, 0])
"""Ten predictions and labels, whose metrics are computed by hand."""


@functools.cache
def all_cases() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities `[COUNT, N, CLASSES]` and labels `[COUNT, N]` of every case."""
    probs, labels = zip(*map(case, range(COUNT)), strict=True)
    return np.stack(probs), np.stack(labels)


def case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are soft, sharp, sixteenths or one-hot; labels of which a random share is right.

    Only uniform numbers and arithmetic, whose results do not change between versions of NumPy.
    """
    rng = np.random.default_rng(seed)
    u, skill = rng.random((N, CLASSES)), rng.random()
    kind = seed % 4
    if kind == 2:
        probs = np.zeros((N, CLASSES))
        for c in range(CLASSES - 1):  # break off a whole number of sixteenths of what is left
            probs[:, c] = np.floor(u[:, c] * (17 - 16 * probs.sum(axis=1))) / 16
        probs[:, -1] = 1 - probs.sum(axis=1)
    elif kind == 3:
        probs = np.eye(CLASSES)[np.argmax(u, axis=1)]
    else:
        weights = u**8 if kind == 1 else u
        probs = weights / weights.sum(axis=1, keepdims=True)
    guess = np.floor(rng.random(N) * CLASSES).astype(np.int64)
    if seed % 5 == 0:
        guess[:] = seed % CLASSES
        skill = 0.0 if seed % 10 == 0 else skill  # labels of one class only
    return probs, np.where(rng.random(N) < skill, np.argmax(probs, axis=1), guess)
