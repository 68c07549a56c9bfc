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

from byov_jax.evaluation import checks


class Neighbours(NamedTuple):
    """The nearest rows of the bank for each query, nearest first.

    Attributes:
      similarity: their cosine similarities.
      row: their indices in the bank; of two equally similar rows the lower comes first.
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
    """Predict class probabilities for each row of `features`: `vote` of the `k` `nearest` in the bank.

    For several k or temperatures, call `nearest` once with the largest k, then `vote` for each.

    Args:
      bank: features of the labelled examples.
      bank_labels: integers from 0 to `classes - 1`.
      features: the rows to classify.
      classes: number of classes, including those absent from `bank_labels`.
      k: number of neighbours that vote.
      temperature: the smaller, the more the nearest neighbours decide.
      block: rows of the bank and of the features that are compared at a time.
    """
    checks.integer_labels(bank_labels, len(bank), classes)
    near = nearest(bank, features, k=k, block=block)
    return vote(near, bank_labels, classes=classes, k=k, temperature=temperature)


def nearest(
    bank: Float[Array | np.ndarray, "m features"],
    features: Float[Array | np.ndarray, "n features"],
    *,
    k: int = 20,
    block: int = 4096,
) -> Neighbours:
    """Find the `k` rows of the bank that are most similar to each row of `features`.

    Similarity is the cosine, and 0 for a row of zeros. Beyond its arguments this needs the memory of a few
    arrays [block, block]. The block size does not change the neighbours, except that two may swap whose
    similarities differ by no more than rounding.
    """
    checks.features("bank", bank)
    checks.features("features", features)
    if bank.shape[1] != features.shape[1]:
        raise ValueError(f"bank and features must have equal width, got {bank.shape} and {features.shape}")
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
        """Search for one query; `lax.map` vectorises it over a block of them."""

        def merge(best: Neighbours, start: Array) -> tuple[Neighbours, None]:
            # The last block starts early enough to be full, which saves a padded copy of the bank.
            begin = jnp.minimum(start, len(bank) - size)
            candidates = _normalise(jax.lax.dynamic_slice_in_dim(bank, begin, size).astype(dtype))
            row = begin + jnp.arange(size, dtype=jnp.int32)
            # bfloat16, the default of a TPU, would not resolve the order of near neighbours.
            similarity = jnp.matmul(candidates, query, precision=jax.lax.Precision.HIGHEST)
            similarity = jnp.where(row >= start, similarity, -jnp.inf)  # the others are in an earlier block
            # The best so far come first: of equals, `top_k` prefers the earlier, and they are the lower rows.
            similarity = jnp.concatenate([best.similarity, similarity])
            similarity, index = jax.lax.top_k(similarity, k)
            return Neighbours(similarity, jnp.concatenate([best.row, row])[index]), None

        query = _normalise(query.astype(dtype))
        empty = Neighbours(jnp.full(k, -jnp.inf, dtype), jnp.zeros(k, jnp.int32))
        return jax.lax.scan(merge, empty, jnp.arange(0, len(bank), size, dtype=jnp.int32))[0]

    return jax.lax.map(search, features, batch_size=min(block, len(features)))


def _normalise(rows: Float[Array, "*rows features"]) -> Float[Array, "*rows features"]:
    """Scale rows to length 1; rows of zeros stay zero."""
    # By the largest entry first: the squares of very large or small values overflow or underflow in float32.
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
    """Weight the `k` nearest by `exp(similarity / temperature)` and normalise (Wu et al., 2018).

    Args:
      near: from `nearest`, with at least `k` neighbours per row.
      bank_labels: the classes of the bank's rows.
      classes: number of classes.
      k: number of neighbours that vote.
      temperature: positive; .07 and .1 are customary.

    Returns:
      Probabilities. A class without a neighbour has exactly 0, whose logarithm is not finite.
    """
    checks.integer_labels(bank_labels, len(bank_labels), classes)
    if checks.is_concrete(near.row) and near.row.max() >= len(bank_labels):
        raise ValueError(f"there are {len(bank_labels)} bank_labels, but a neighbour in row {near.row.max()}")
    if not 1 <= k <= near.row.shape[1]:
        raise ValueError(f"k={k}; allowed: 1 to {near.row.shape[1]}, the neighbours per row")
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
