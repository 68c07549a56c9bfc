"""Monte-Carlo prediction: one network, many draws of its weights.

    draws = predict(key, q, apply, images, draws=30)        # [30, n, classes]
    answer = statistics(key, q, apply, images, draws=1000)  # mean, std, entropy ..., not [1000, n, classes]

`apply(params, x)` maps inputs [n, ...] to outputs [n, ...], example by example: an array or a tree of them.
Draw `i` depends on `(key, i)` alone: all images see the same weights, so predictions are joint, and the
first 10 of 30 draws are the 10 of a smaller run. Sampling and `apply` are compiled apart, each once: pass the
same function object again, and neither the number of draws nor the posterior's values compile anything new.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from byov_jax.bayes import posterior
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.select import path_of
from byov_jax.evaluation import memory
from byov_jax.evaluation.metrics import entropy

Apply = Callable[[Any, Any], Any]
MODES = ("mc", "mean")


class Moments(NamedTuple):
    """Mean and variance (ddof 0) over the draws, each a tree like the output of `apply`."""

    mean: Any
    variance: Any


class Prediction(NamedTuple):
    """What K draws say together of each image.

    Attributes:
      probs: mean over the draws.
      variance: variance of each class's probability over the draws.
      std: predictive std: that of the probability of the class which `probs` favours.
      entropy: total uncertainty, `H[mean]`, in nats.
      expected_entropy: the part that no knowledge of the weights would remove, `mean[H]`.
      mutual_information: the part that it would, `H[mean] - mean[H]`; 0 without a posterior.
      latent_variance: variance of the features over the draws, averaged over the features; None if `apply`
        gives no features.
      features: mean over the draws; None if `apply` gives none.
      others: mean over the draws of what else `apply` gives.
    """

    probs: Float[Array, "n classes"]
    variance: Float[Array, "n classes"]
    std: Float[Array, "n"]
    entropy: Float[Array, "n"]
    expected_entropy: Float[Array, "n"]
    mutual_information: Float[Array, "n"]
    latent_variance: Float[Array, "n"] | None = None
    features: Float[Array, "n features"] | None = None
    others: Any = None


def predict(
    key: Array,
    q: Posterior,
    apply: Apply,
    x: Any,
    draws: int = 30,
    chunk: int | None = None,
    *,
    batch: int | None = None,
    mode: str = "mc",
) -> Any:
    """Outputs of `apply` under `draws` draws of the weights.

    Args:
      key: decides the draws.
      q: the posterior.
      apply: `(params, x) -> outputs`.
      x: inputs, an array or a tree of arrays, examples first.
      draws: K, the number of draws.
      chunk: draws computed at once; from the free memory if None. The draws are the same whatever it is.
      batch: examples computed at once; from the free memory if None.
      mode: "mc" draws weights; "mean" uses the posterior's mean, once.

    Returns:
      A tree like the output of `apply` with a leading axis of K draws: [K, n, ...] (K = 1 for "mean").
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
    if mode == "mean":
        q, draws = posterior.point(q.mean), 1
    outputs = list(_outputs(key, q, apply, x, draws, chunk, batch))
    return jax.tree.map(lambda *chunks: jnp.concatenate(chunks), *outputs)


def moments(
    key: Array,
    q: Posterior,
    apply: Apply,
    x: Any,
    draws: int = 30,
    chunk: int | None = None,
    *,
    batch: int | None = None,
) -> Moments:
    """Mean and variance of `apply`'s outputs over the draws of `predict`, without holding them all.

    Welford's recursion, one draw after the other: memory is that of a chunk, whatever K.
    """
    total = None
    for outputs in _outputs(key, q, apply, x, draws, chunk, batch):
        total = _include(total or _nothing(outputs), outputs)
    return _finish(total)


def statistics(
    key: Array,
    q: Posterior,
    apply: Apply,
    x: Any,
    draws: int = 30,
    chunk: int | None = None,
    *,
    batch: int | None = None,
) -> Prediction:
    """The predictive distribution of a classifier.

    Args as in `predict`, with an `apply` that gives probabilities [n, classes], or a tuple of them, features
    [n, d] and anything else. Memory is that of a chunk of draws and a few arrays like it, whatever K.
    """
    total = None
    for outputs in _outputs(key, q, apply, x, draws, chunk, batch):
        probs, *more = outputs if isinstance(outputs, tuple) else (outputs,)
        observed = (probs, _entropies(probs), more)
        total = _include(total or _nothing(observed), observed)
    return _describe(_finish(total))


def _outputs(key, q: Posterior, apply: Apply, x, draws: int, chunk, batch) -> Iterator[Any]:
    """Outputs [chunk, n, ...] of one chunk of draws after the other."""
    chunk, batch = _sizes(apply, q, x, draws, chunk, batch)
    n = _length(x)
    bayesian, complete = _bayesian_part(q)
    before: Any = None
    for start in range(0, draws, chunk):
        drawn = (_sample(key, bayesian, index) for index in range(start, min(start + chunk, draws)))
        weights = [complete(draw) for draw in drawn]
        outputs = [_forward(weights, block, apply=apply) for block in _blocks(x, batch)]
        jax.block_until_ready(before)  # else dispatch would run ahead, and hold the weights of many chunks
        before = outputs
        yield jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1)[:, :n], *outputs)


def _bayesian_part(q: Posterior) -> tuple[Posterior, Callable[[dict], Any]]:
    """What is to be drawn, by path, and the function that completes a draw of it to all parameters.

    Whatever point estimates surround the same Bayesian weights, the same program draws them.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(q.mean)
    means = {path_of(keys): leaf for keys, leaf in leaves}
    log_vars = {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(q.log_var)}
    if odd := sorted(set(log_vars) - set(means)):
        raise ValueError(f"log_var does not have the structure of the mean: {odd[0]!r} is only in log_var")
    bayesian = Posterior({path: means[path] for path in log_vars}, log_vars)
    return bayesian, lambda drawn: jax.tree.unflatten(treedef, (means | drawn).values())


@jax.jit
def _sample(key, q: Posterior, index):
    return posterior.sample(jax.random.fold_in(key, index), q)


@partial(jax.jit, static_argnames="apply")
def _forward(weights: list, x, *, apply: Apply):
    if len(weights) == 1:  # a matrix product with a batch axis of one is slower than without
        return jax.tree.map(lambda y: y[None], apply(weights[0], x))
    stacked = jax.tree.map(lambda *draws: jnp.stack(draws), *weights)
    return jax.vmap(apply, in_axes=(0, None))(stacked, x)


def _blocks(x, size: int) -> Iterator[Any]:
    """`x` in blocks of equal size, so that one program serves them all; the last is filled up with zeros.

    Each is taken when it is needed: an `x` that only looks like an array may have to read it from a disk.
    """
    n = _length(x)
    for start in range(0, n, size):
        block = jax.tree.map(lambda a, i=start: a[i : i + size], x)
        yield block if n - start >= size else jax.tree.map(lambda a: _filled(a, size), block)


def _filled(array, size: int):
    return jnp.pad(array, [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1))


class _Total(NamedTuple):
    """Welford's recursion: draws so far, their mean, and the sum of squared deviations from it."""

    count: Any
    mean: Any
    square: Any


def _nothing(outputs) -> _Total:
    zeros = jax.tree.map(lambda y: jnp.zeros(y.shape[1:], jnp.promote_types(y.dtype, jnp.float32)), outputs)
    return _Total(0, zeros, zeros)


@jax.jit
def _include(total: _Total, outputs) -> _Total:
    """Adds a chunk of draws, one after the other, so that chunks of any size give the same bits."""

    def include(total: _Total, output):
        count = total.count + 1
        deviation = jax.tree.map(jnp.subtract, output, total.mean)
        mean = jax.tree.map(lambda m, d: m + d / count, total.mean, deviation)
        square = jax.tree.map(lambda s, d, y, m: s + d * (y - m), total.square, deviation, output, mean)
        return _Total(count, mean, square), None

    return jax.lax.scan(include, total, outputs)[0]


@jax.jit
def _finish(total: _Total) -> Moments:
    return Moments(total.mean, jax.tree.map(lambda s: s / total.count, total.square))


_entropies = jax.jit(jax.vmap(entropy))


@jax.jit
def _describe(moments: Moments) -> Prediction:
    (probs, expected_entropy, more), (variance, _, spread) = moments
    total = entropy(probs)
    favourite = jnp.argmax(probs, axis=-1, keepdims=True)
    return Prediction(
        probs=probs,
        variance=variance,
        std=jnp.sqrt(jnp.take_along_axis(variance, favourite, axis=-1)[:, 0]),
        entropy=total,
        expected_entropy=expected_entropy,
        mutual_information=jnp.maximum(total - expected_entropy, 0.0),  # rounding must not make it negative
        latent_variance=jnp.mean(spread[0], axis=-1) if spread else None,
        features=more[0] if more else None,
        others=more[1:],
    )


def _sizes(apply: Apply, q: Posterior, x, draws: int, chunk: int | None, batch: int | None):
    for name, value in (("draws", draws), ("chunk", chunk), ("batch", batch)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value!r} must be at least 1")
    n = _length(x)
    if chunk is None or batch is None:
        fit = memory.fit(apply, q.mean, x, draws)
        chunk, batch = chunk or fit.draws, batch or fit.examples
    return min(chunk, draws), min(batch, n)


def _length(x) -> int:
    lengths = {a.shape[0] if a.ndim else 0 for a in jax.tree.leaves(x)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"x must have examples along the first axis of each array, got {sorted(lengths)}")
    return lengths.pop()
