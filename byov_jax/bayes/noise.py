"""Standard normal noise for all leaves of a tree at once.

The noise of a leaf is `jax.random.normal(key, shape)` with a key of its own, derived from its path. Compiled
leaf by leaf, the generator would be most of a training step's program, so one loop makes the noise of all.
"""

import hashlib
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as generators
from jaxtyping import Array

ROW = 1024
"""Numbers of one leaf in a row of the loop; fewer if all leaves are smaller."""

ROWS = 256
"""Maximum number of rows in one iteration, which the device makes in parallel."""


def normal(
    key: Array, leaves: dict[str, Array], constrain: Callable[[Array], Array] | None = None
) -> dict[str, Array]:
    """Draw standard normal noise by path, at least float32, the same with and without `constrain`.

    Args:
      key: key of the draw; the key of a leaf is this one with 64 bits of its path's hash folded in.
      leaves: arrays by path, for their shapes and dtypes.
      constrain: a sharding constraint of every leaf, so that each device generates only its shard.
    """
    kinds: dict[tuple, list[str]] = {}
    # A loop over rows would be in the way of sharding, and other generators cannot start within a leaf.
    in_rows = constrain is None and _is_counter(key)
    for path, leaf in leaves.items():
        dtype = jnp.promote_types(leaf.dtype, jnp.float32)
        kinds.setdefault((dtype, None if in_rows else leaf.shape), []).append(path)
    noise: dict[str, Array] = {}
    for (dtype, shape), paths in kinds.items():
        keys = _fold_in(key, paths)
        if in_rows:
            drawn = _in_rows(keys, [leaves[path].shape for path in paths], dtype)
        else:
            drawn = _leaf_by_leaf(keys, shape, dtype, constrain or (lambda noise: noise))
        noise |= dict(zip(paths, drawn, strict=True))
    return noise


def _in_rows(keys: Array, shapes: list[tuple[int, ...]], dtype) -> list[Array]:
    """Draw in one loop, over rows that each belong to one leaf."""
    sizes = [math.prod(shape) for shape in shapes]
    width = min(ROW, max(1, *sizes))
    first = np.concatenate([[0], np.cumsum([-(-size // width) for size in sizes])])
    iterations = max(2, -(-first[-1] // ROWS))  # XLA would dissolve a loop of one
    rows = -(-first[-1] // iterations)

    def some_rows(iteration):
        row = iteration * rows + jnp.arange(rows)
        leaf = jnp.sum(row[:, None] >= first[None, 1:-1], axis=1)
        start = (row - jnp.asarray(first)[leaf]) * width
        return jax.vmap(lambda key: jax.random.normal(key, (width,), dtype))(_starting_at(start, keys[leaf]))

    flat = jax.lax.map(some_rows, jnp.arange(iterations)).reshape(-1)
    begins = first[:-1] * width
    return [
        flat[begin : begin + size].reshape(shape)
        for begin, size, shape in zip(begins, sizes, shapes, strict=True)
    ]


def _leaf_by_leaf(keys: Array, shape, dtype, constrain) -> list[Array]:
    """Draw leaves of one shape in one loop, so that compilation time hardly grows with depth."""
    drawn = jax.lax.map(lambda key: constrain(jax.random.normal(key, shape, dtype)), keys)
    return [constrain(draw) for draw in drawn]


def _fold_in(key: Array, paths: list[str]) -> Array:
    """Fold 64 bits of each path's hash into the key: one key a path."""
    digests = b"".join(hashlib.blake2b(path.encode(), digest_size=8).digest() for path in paths)
    words = np.frombuffer(digests, "<u4").reshape(-1, 2)
    return jax.vmap(lambda word: jax.random.fold_in(jax.random.fold_in(key, word[0]), word[1]))(words)


def _is_counter(key: Array) -> bool:
    """Return whether the n-th number of a key is a function of the key and n, as with JAX's default."""
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    return partitionable and "threefry2x32" in str(jax.random.key_impl(key))


def _starting_at(start: Array, keys: Array) -> Array:
    """Return keys [n] whose n-th number is the one of number `start + n` of `keys`."""
    data = jax.random.key_data(keys)
    return jax.random.wrap_key_data(
        jnp.concatenate([data, start[:, None].astype(data.dtype)], 1), impl=_OFFSET
    )


def _bits(data: Array, width: int, shape: tuple[int, ...]) -> Array:
    """Return the bits that Threefry makes of two words of key and a counter that starts at the third."""
    counter = data[2] + jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    words = generators.threefry2x32_p.bind(data[0], data[1], jnp.zeros_like(counter), counter)
    if width == 64:
        high, low = (word.astype(jnp.uint64) for word in words)
        return high << 32 | low
    return words[0] ^ words[1]


def _none(*_):
    raise NotImplementedError("these keys only draw")


_OFFSET = generators.define_prng_impl(
    key_shape=(3,),
    seed=_none,
    split=_none,
    fold_in=_none,
    random_bits=_bits,
    name="threefry2x32 from a counter",
)
