"""What the metrics accept: arrays of probabilities, labels, weights and scores, refused where they are wrong.

Outside of jit every value is checked. Inside, where no value is known, only shapes and dtypes are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def predictions(
    probs: Array | np.ndarray, labels: Array | np.ndarray, weights: Array | np.ndarray | None = None
) -> tuple[Float[Array, "n classes"], Int[Array, "n"]]:
    """Returns the probabilities in float32 at least and the labels as integers, once both are known to fit.

    Args:
      probs: `[n, classes]`, rows in [0, 1] that sum to 1 within `tolerance`.
      labels: `[n]` integers from 0 to `classes - 1`.
      weights: `[n]` or None; rows of weight 0 are padding, which may hold anything.
    """
    _check_shape("probs", probs, ("n", "classes"))
    if labels.shape != probs.shape[:1]:
        raise ValueError(f"labels must be [{len(probs)}] like the rows of probs, got {list(labels.shape)}")
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if weights is not None:
        _check_weights(weights, len(probs))
    if known(probs) and known(weights):
        _check_probs(_rows(probs, weights), tolerance(probs.dtype))
    if known(labels) and known(weights):
        _check_labels(_rows(labels, weights), probs.shape[1])
    return _promote(probs), jnp.asarray(labels).astype(jnp.int32)


def probabilities(probs: Array | np.ndarray, axes: tuple[str, ...]) -> Float[Array, "..."]:
    """Returns probabilities `[*axes]`, the last axis being the classes, in float32 at least."""
    _check_shape("probs" if len(axes) == 2 else "draws", probs, axes)
    if known(probs):
        _check_probs(np.asarray(probs).reshape(-1, probs.shape[-1]), tolerance(probs.dtype))
    return _promote(probs)


def scores(name: str, values: Array | np.ndarray) -> Float[Array, "n"]:
    """Returns one score an example, in float32 at least."""
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{name} must be [n] with n above 0, got {list(values.shape)}")
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real numbers, got {values.dtype}")
    if known(values) and not np.all(np.isfinite(np.asarray(values))):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return _promote(values)


def count(name: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """Refuses what is not a whole number from `least` to `most`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} must be a whole number, {allowed}, got {value!r}")


def known(x) -> bool:
    """Whether values can be looked at: not inside jit, nor where other hosts hold some of them."""
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)


def tolerance(dtype) -> float:
    """How far from 1 the probabilities of a row may sum: 1e-2 in 16 bits, 1e-3 otherwise.

    A softmax rounded to bfloat16 is off by up to 2**-9; logits and unnormalised scores are off by far more.
    """
    return 1e-2 if jnp.finfo(dtype).bits == 16 else 1e-3


def _check_shape(name: str, probs, axes: tuple[str, ...]) -> None:
    if probs.ndim != len(axes) or 0 in probs.shape or probs.shape[-1] < 2:
        form = ", ".join(axes)
        raise ValueError(f"{name} must be [{form}], not empty, of 2 classes or more, got {list(probs.shape)}")
    if not jnp.issubdtype(probs.dtype, jnp.floating):
        raise ValueError(f"{name} must be floating-point probabilities, got {probs.dtype}")


def _check_probs(rows: np.ndarray, tolerance: float) -> None:
    if not len(rows):
        return
    rows = rows.astype(np.promote_types(rows.dtype, np.float32))
    if not np.all(np.isfinite(rows)):
        raise ValueError("probabilities must be finite, got NaN or infinity")
    if rows.min() < 0 or rows.max() > 1 + tolerance:
        raise ValueError(f"probabilities must lie in [0, 1], got {rows.min():.6g} to {rows.max():.6g}")
    sums = rows.sum(axis=1)
    worst = sums[np.argmax(np.abs(sums - 1))]
    if abs(worst - 1) > tolerance:
        raise ValueError(f"probabilities must sum to 1 within {tolerance:g}, got a row with sum {worst:.6g}")


def _check_labels(labels: np.ndarray, classes: int) -> None:
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise ValueError(f"labels must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}")


def _check_weights(weights, n: int) -> None:
    if weights.shape != (n,):
        raise ValueError(f"weights must be [{n}] like the rows of probs, got {list(weights.shape)}")
    if jnp.issubdtype(weights.dtype, jnp.complexfloating):
        raise ValueError(f"weights must be a mask or real numbers, got {weights.dtype}")
    if known(weights):
        values = np.asarray(weights)
        wrong = values[~(np.isfinite(values) & (values >= 0))]
        if len(wrong):
            raise ValueError(f"weights must be finite and not negative, got {wrong[0]}")


def _rows(values, weights) -> np.ndarray:
    return np.asarray(values) if weights is None else np.asarray(values)[np.asarray(weights) > 0]


def _promote(x) -> Array:
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
