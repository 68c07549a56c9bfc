"""Weighted k-nearest-neighbour classification of frozen features, in blocks: memory does not grow with n * m.

near = knn.nearest(bank, features, k=200)
for k in (20, 200):
    probs = knn.vote(near, bank_labels, classes=1000, k=k)
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Integer


class Neighbours(NamedTuple):
    """The nearest rows of the bank for each query, nearest first.

    Attributes:
      similarity: their cosine similarities.
      row: where they are in the bank; of two as similar, the lower row comes first.
    """

    similarity: Float[Array, "n k"]
    row: Int32[Array, "n k"]


def probs(
    bank: Float[Array | np.ndarray, "m features"],
    bank_labels: Integer[Array | np.ndarray, "m"],
    features: Float[Array | np.ndarray, "n features"],
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
    block: int = 4096,
) -> Float[Array, "n classes"]:
    """The probability of each class for each row of `features`: `vote` of the `k` `nearest` in the bank.

    For several k or temperatures, call `nearest` once with the largest k, then `vote` for each.

    Args:
      bank: features of the labelled examples.
      bank_labels: integers from 0 to `classes - 1`.
      features: the rows to classify.
      classes: how many classes there are, in `bank_labels` or not.
      k: how many neighbours vote.
      temperature: the smaller, the more the nearest of them decide.
      block: rows of the bank and of the features that are compared at a time.
    """
    _check_labels(bank_labels, len(bank), classes)
    near = nearest(bank, features, k=k, block=block)
    return vote(near, bank_labels, classes=classes, k=k, temperature=temperature)


def score(
    bank: Float[Array | np.ndarray, "m features"],
    bank_labels: Integer[Array | np.ndarray, "m"],
    features: Float[Array | np.ndarray, "n features"],
    labels: Integer[Array | np.ndarray, "n"],
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
    block: int = 4096,
) -> float:
    """The fraction of `features` whose most probable class, by `probs`, is their label."""
    _check_labels(labels, len(features), classes)
    found = probs(bank, bank_labels, features, classes=classes, k=k, temperature=temperature, block=block)
    return float(jnp.mean(jnp.argmax(found, axis=-1) == jnp.asarray(labels)))


def nearest(
    bank: Float[Array | np.ndarray, "m features"],
    features: Float[Array | np.ndarray, "n features"],
    *,
    k: int = 20,
    block: int = 4096,
) -> Neighbours:
    """The `k` rows of the bank that are most similar to each row of `features`.

    The similarity of two rows is their cosine; that of a row of zeros to any other is 0. Beside its arguments
    it needs memory for a few arrays `[block, block]`. The size of the blocks does not change the neighbours,
    except that two may swap whose similarities differ by no more than rounding.
    """
    _check_features("bank", bank)
    _check_features("features", features)
    if bank.shape[1] != features.shape[1]:
        raise ValueError(f"bank and features must be as wide, got {bank.shape} and {features.shape}")
    if not 1 <= k <= len(bank):
        raise ValueError(f"k={k}; allowed: 1 to {len(bank)}, the size of the bank")
    if block < 1:
        raise ValueError(f"block={block}; allowed: 1 or more")
    return _nearest(bank, features, k, block)


@partial(jax.jit, static_argnames=("k", "block"))
def _nearest(bank: Array, features: Array, k: int, block: int) -> Neighbours:
    size = min(block, len(bank))
    dtype = jnp.result_type(bank, features, jnp.float32)

    def search(query: Array) -> Neighbours:
        """Of one query; `lax.map` vectorises it over a block of them."""

        def merge(best: Neighbours, start: Array) -> tuple[Neighbours, None]:
            # The last block begins early enough to be whole: no padded copy of the bank is made.
            begin = jnp.minimum(start, len(bank) - size)
            candidates = _normalise(jax.lax.dynamic_slice_in_dim(bank, begin, size).astype(dtype))
            row = begin + jnp.arange(size, dtype=jnp.int32)
            # In bfloat16, the default of a TPU, the order of near neighbours would be a matter of luck.
            similarity = jnp.matmul(candidates, query, precision=jax.lax.Precision.HIGHEST)
            similarity = jnp.where(row >= start, similarity, -jnp.inf)  # the others had their turn
            # The best so far go first: `top_k` prefers the earlier of equals, and they are the lower rows.
            similarity = jnp.concatenate([best.similarity, similarity])
            similarity, place = jax.lax.top_k(similarity, k)
            return Neighbours(similarity, jnp.concatenate([best.row, row])[place]), None

        query = _normalise(query.astype(dtype))
        nobody = Neighbours(jnp.full(k, -jnp.inf, dtype), jnp.zeros(k, jnp.int32))
        return jax.lax.scan(merge, nobody, jnp.arange(0, len(bank), size, dtype=jnp.int32))[0]

    return jax.lax.map(search, features, batch_size=min(block, len(features)))


def _normalise(rows: Float[Array, "*rows features"]) -> Float[Array, "*rows features"]:
    """Rows of length 1; zeros stay zeros."""
    # Scaled first: the squares of very large or small values have no float32.
    largest = jnp.max(jnp.abs(rows), axis=-1, keepdims=True)
    rows = rows / jnp.where(largest > 0.0, largest, 1.0)
    length = jnp.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / jnp.where(length > 0.0, length, 1.0)


def vote(
    near: Neighbours,
    bank_labels: Integer[Array | np.ndarray, "m"],
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
) -> Float[Array, "n classes"]:
    """The share of each class in the votes of the `k` nearest, `exp(similarity / temperature)` each.

    The weighted vote of Wu et al. (2018), normalised to probabilities.

    Args:
      near: from `nearest`, with at least `k` neighbours a row.
      bank_labels: the classes of the bank's rows.
      classes: how many classes there are.
      k: how many of the neighbours vote.
      temperature: positive; .07 and .1 are customary.

    Returns:
      Probabilities. A class without a neighbour has exactly 0, whose logarithm is not finite.
    """
    _check_labels(bank_labels, None, classes)
    if not isinstance(near.row, jax.core.Tracer) and near.row.max() >= len(bank_labels):
        raise ValueError(f"there are {len(bank_labels)} bank_labels, but a neighbour in row {near.row.max()}")
    if not 1 <= k <= near.row.shape[1]:
        raise ValueError(f"k={k}; allowed: 1 to {near.row.shape[1]}, as many neighbours as there are")
    if not temperature > 0.0:
        raise ValueError(f"temperature={temperature}; allowed: positive numbers")
    return _vote(near, bank_labels, classes, k, temperature)


@partial(jax.jit, static_argnames=("classes", "k"))
def _vote(near: Neighbours, bank_labels: Array, classes: int, k: int, temperature: Array) -> Array:
    # A softmax over the neighbours, then summed by class: no exponential can overflow.
    weight = jax.nn.softmax(near.similarity[:, :k] / temperature, axis=-1)
    label = jnp.asarray(bank_labels)[near.row[:, :k]]
    query = jnp.arange(len(weight))[:, None]
    return jnp.zeros((len(weight), classes), weight.dtype).at[query, label].add(weight)


def _check_features(name: str, features: Array | np.ndarray) -> None:
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"{name} must be [n, features] with n and features above 0, got {features.shape}")
    if isinstance(features, jax.core.Tracer):
        return
    # Not `isfinite` of all: for a large bank that is a large array too.
    if not (jnp.isfinite(features.min()) and jnp.isfinite(features.max())):
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def _check_labels(labels: Array | np.ndarray, count: int | None, classes: int) -> None:
    if labels.ndim != 1 or (count is not None and len(labels) != count):
        raise ValueError(f"labels must be one for each of {count} rows, got {labels.shape}")
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if isinstance(labels, jax.core.Tracer):
        return
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
