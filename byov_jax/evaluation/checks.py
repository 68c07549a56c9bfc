"""Input checks of the metrics, the probes and the bootstrap.

Outside of jit all values are checked, on the host, where that compiles nothing; inside, where values are
unknown, only shapes and dtypes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_BLOCK = 2**20
"""Bytes that stay in the cache of a processor while they are reduced three times."""


def predictions(
    probs: Array | np.ndarray,
    labels: Array | np.ndarray,
    weights: Array | np.ndarray | None = None,
    *,
    where: Array | np.ndarray | None = None,
) -> None:
    """Raise ValueError unless rows hold probabilities, and labels of their classes.

    Args:
      probs: [n, classes], rows in [0, 1] that sum to 1 within `tolerance`.
      labels: [n] integers from 0 to `classes - 1`.
      weights: [n] or None; rows of weight 0 are padding and may hold anything.
      where: [n] booleans or None, instead of weights; one row at least must count.
    """
    probability_axes("probs", probs, ("n", "classes"))
    if weights is not None:
        _check_weights(weights, len(probs))
    if where is not None:
        mask("where", where, len(probs))
        weights = where
    if is_concrete(probs) and is_concrete(weights):
        probability_rows(_weighted_rows(probs, weights), tolerance(probs.dtype))
    integer_labels(labels, len(probs), probs.shape[1], weights)


def probabilities(probs: Array | np.ndarray, axes: tuple[str, ...]) -> None:
    """Raise ValueError unless `probs` holds probabilities `[*axes]`, classes last."""
    probability_axes("probs" if len(axes) == 2 else "draws", probs, axes)
    if is_concrete(probs):
        probability_rows(np.asarray(probs).reshape(-1, probs.shape[-1]), tolerance(probs.dtype))


def mask(name: str, where: Array | np.ndarray, n: int) -> None:
    """Raise ValueError unless `where` is [n] booleans, at least one of them True."""
    if where.shape != (n,) or where.dtype != bool:
        raise ValueError(f"{name} must be [{n}] booleans, got {list(where.shape)} of {where.dtype}")
    if is_concrete(where) and not np.any(np.asarray(where)):
        raise ValueError(f"{name} is False everywhere: no row is left to measure")


def scores(name: str, values: Array | np.ndarray, where: Array | np.ndarray | None = None) -> None:
    """Raise ValueError unless there is one score per example, finite where the mask `where` is not False."""
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{name} must be [n] with n above 0, got {list(values.shape)}")
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real numbers, got {values.dtype}")
    if where is not None:
        mask(f"{name}_where", where, len(values))
    if is_concrete(values) and is_concrete(where):
        finite(name, _weighted_rows(values, where))


def features(name: str, values: Array | np.ndarray) -> None:
    """Raise ValueError unless `values` is [n, features], not empty, and finite."""
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"{name} must be [n, features] with n and features above 0, got {values.shape}")
    finite(name, values)


def integer_labels(
    labels: Array | np.ndarray, n: int, classes: int, weights: Array | np.ndarray | None = None
) -> None:
    """Raise ValueError unless `labels` is [n] integers from 0 to `classes - 1` where the weight is not 0."""
    if labels.shape != (n,):
        raise ValueError(f"labels must be [{n}], one per row, got {list(labels.shape)}")
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if is_concrete(labels) and is_concrete(weights):
        counted = _weighted_rows(labels, weights)
        if len(counted) and (counted.min() < 0 or counted.max() >= classes):
            raise ValueError(f"labels must be 0 to {classes - 1}, got {counted.min()} to {counted.max()}")


def integer(name: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """Raise ValueError unless `value` is an integer from `least` to `most`."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} must be an integer, {allowed}, got {value!r}")


def fraction(name: str, value: float) -> None:
    """Raise ValueError unless `value` lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must be above 0 and below 1, got {value}")


def finite(name: str, values: Array | np.ndarray) -> None:
    """Raise ValueError for NaN or infinity."""
    # Reductions first: `isfinite` of a large feature bank would be a large array too.
    if is_concrete(values) and not np.all(np.isfinite([float(values.min()), float(values.max())])):
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def is_concrete(x) -> bool:
    """Whether values can be read: not inside jit, nor where other hosts hold some of them."""
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)


def are_concrete(*arrays) -> bool:
    """Whether the values of all of them can be read."""
    return all(is_concrete(x) for x in arrays)


def as_float(x) -> Array:
    """Convert to a floating-point array of float32 or wider."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def tolerance(dtype) -> float:
    """Return how far from 1 the probabilities of a row may sum: 1e-2 in 16 bits, 1e-3 otherwise.

    A softmax rounded to bfloat16 is off by up to 2**-9; logits and unnormalised scores are off by far more.
    """
    return 1e-2 if jnp.finfo(dtype).bits == 16 else 1e-3


def probability_axes(name: str, probs: Array | np.ndarray, axes: tuple[str, ...]) -> None:
    """Raise ValueError unless `probs` is a floating-point array `[*axes]`, with 2 or more classes last."""
    if probs.ndim != len(axes) or 0 in probs.shape or probs.shape[-1] < 2:
        form = ", ".join(axes)
        raise ValueError(
            f"{name} must be [{form}], not empty, with 2 or more classes, got {list(probs.shape)}"
        )
    if not jnp.issubdtype(probs.dtype, jnp.floating):
        raise ValueError(f"{name} must be floating-point probabilities, got {probs.dtype}")


def probability_rows(rows: np.ndarray, tolerance: float) -> None:
    """Raise ValueError unless rows [n, classes] are in [0, 1] and sum to 1 within the tolerance."""
    if not len(rows):
        return
    rows = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
    low, high, worst = np.inf, -np.inf, 1.0
    step = max(1, _BLOCK // rows.itemsize // rows.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # sums of what is refused below
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            low, high = np.minimum(low, block.min()), np.maximum(high, block.max())
            sums = block.sum(axis=1)
            worst = max(worst, sums[np.argmax(np.abs(sums - 1))], key=lambda total: abs(total - 1))
    if not np.isfinite(low) or not np.isfinite(high):
        raise ValueError("probabilities must be finite, got NaN or infinity")
    if low < 0 or high > 1 + tolerance:
        raise ValueError(f"probabilities must lie in [0, 1], got {low:.6g} to {high:.6g}")
    if abs(worst - 1) > tolerance:
        raise ValueError(f"probabilities must sum to 1 within {tolerance:g}, got a row with sum {worst:.6g}")


def _check_weights(weights, n: int) -> None:
    if weights.shape != (n,):
        raise ValueError(f"weights must be [{n}], one per row, got {list(weights.shape)}")
    if jnp.issubdtype(weights.dtype, jnp.complexfloating):
        raise ValueError(f"weights must be a mask or real numbers, got {weights.dtype}")
    if is_concrete(weights):
        values = np.asarray(weights)
        wrong = values[~(np.isfinite(values) & (values >= 0))]
        if len(wrong):
            raise ValueError(f"weights must be finite and not negative, got {wrong[0]}")


def _weighted_rows(values, weights) -> np.ndarray:
    """Return the rows whose weight is not 0."""
    return np.asarray(values) if weights is None else np.asarray(values)[np.asarray(weights) > 0]
