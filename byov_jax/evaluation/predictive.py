"""Monte-Carlo prediction: one network, many draws of its weights.

    draws = predict(key, q, apply, images, draws=30)        # [30, n, classes]
    prediction = statistics(key, q, apply, images, draws=1000)  # .probs .std .entropy ..., in less memory

`apply(params, x)` maps inputs [n, ...] to outputs [n, ...], example by example: an array or a tree of them.
Draw `i` depends on `(key, i)` alone: all images see the same weights, so predictions are joint, and the
first 10 of 30 draws are the 10 of a smaller run. Sampling and `apply` are compiled separately, each once:
for the same function object, neither more draws nor other posterior values cause a compilation.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax import ranges
from byov_jax.bayes import posterior
from byov_jax.bayes.paths import path_of
from byov_jax.bayes.posterior import Posterior
from byov_jax.evaluation import batch_size, checks
from byov_jax.evaluation.metrics.examples import are_probabilities, nan_if
from byov_jax.evaluation.metrics.uncertainty import per_example_entropy, standard_deviation

Apply = Callable[[Any, Any], Any]
MODES = ("mc", "mean")


class Moments(NamedTuple):
    """Mean and variance (ddof 0) over the draws, each a tree like the output of `apply`."""

    mean: Any
    variance: Any


class Prediction(NamedTuple):
    """Statistics over K draws for each image.

    Attributes:
      probs: mean over the draws.
      variance: variance of each class's probability over the draws.
      std: predictive std: that of the probability of the class that `probs` predicts.
      entropy: total uncertainty, `H[mean]`, in nats.
      expected_entropy: aleatoric uncertainty, `mean[H]`.
      mutual_information: epistemic uncertainty, `H[mean] - mean[H]`; 0 without a posterior.
      latent_variance: variance of the features over the draws, averaged over the features; None if `apply`
        returns no features.
      features: mean over the draws; None if `apply` returns none.
      others: mean over the draws of further outputs of `apply`.
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
    """Compute the outputs of `apply` under `draws` draws of the weights.

    Args:
      key: seeds the draws.
      q: the posterior.
      apply: `(params, x) -> outputs`.
      x: inputs, an array or a tree of arrays, examples first.
      draws: K, the number of draws.
      chunk: draws computed at once, which does not change them; from the free memory if None.
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
    """Compute mean and variance of the outputs of `predict` over the draws, in the memory of one chunk."""
    state = None
    for outputs in _outputs(key, q, apply, x, draws, chunk, batch):
        state = _update(state or _init(outputs), outputs)
    return _moments(state)


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
    """Compute statistics of a classifier's predictive distribution, in the memory of a few chunks of draws.

    Args as in `predict`, with an `apply` that returns probabilities [n, classes], not logits, or a tuple of
    these, features [n, d] and anything else. Rows that are not probabilities raise a ValueError outside
    jit, and give NaN inside.
    """
    state = None
    for outputs in _outputs(key, q, apply, x, draws, chunk, batch):
        probs, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
        if state is None:
            _check_probabilities(probs)
        observed = (*_with_entropies(probs), rest)
        state = _update(state or _init(observed), observed)
    return _prediction(_moments(state))


def _outputs(key, q: Posterior, apply: Apply, x, draws: int, chunk, batch) -> Iterator[Any]:
    """Yield outputs [chunk, n, ...] for each chunk of draws."""
    chunk, batch = _sizes(apply, q, x, draws, chunk, batch)
    n = _length(x)
    bayesian, complete = _bayesian_part(q)
    previous: Any = None
    for start in range(0, draws, chunk):
        drawn = (_sample(key, bayesian, index) for index in range(start, min(start + chunk, draws)))
        weights = [complete(draw) for draw in drawn]
        outputs = [_forward(weights, block, apply=apply) for block in _blocks(x, batch)]
        jax.block_until_ready(previous)  # else asynchronous dispatch would hold the weights of many chunks
        previous = outputs
        yield jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1)[:, :n], *outputs)


def _bayesian_part(q: Posterior) -> tuple[Posterior, Callable[[dict], Any]]:
    """Return the Bayesian weights by path, and a function that completes a draw of them to all parameters.

    Posteriors with the same Bayesian weights share one sampling program, whatever their point estimates.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(q.mean)
    means = {path_of(keys): leaf for keys, leaf in leaves}
    log_vars = {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(q.log_var)}
    if unknown := sorted(set(log_vars) - set(means)):
        raise ValueError(
            f"log_var does not have the structure of the mean: {unknown[0]!r} is only in log_var"
        )
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
    """Yield `x` in blocks of equal size, the last padded with zeros, so that one program serves them all.

    Blocks are sliced when needed: `x` may read its slices from disk.
    """
    n = _length(x)
    for start in range(0, n, size):
        block = jax.tree.map(lambda a, i=start: a[i : i + size], x)
        yield block if n - start >= size else jax.tree.map(lambda a: _padded(a, size), block)


def _padded(array, size: int):
    return jnp.pad(array, [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1))


class _Welford(NamedTuple):
    """Welford's recursion: draws so far, their mean, and the sum of squared deviations from it."""

    count: Any
    mean: Any
    square: Any


def _init(outputs) -> _Welford:
    zeros = jax.tree.map(lambda y: jnp.zeros(y.shape[1:], jnp.promote_types(y.dtype, jnp.float32)), outputs)
    return _Welford(0, zeros, zeros)


@jax.jit
def _update(state: _Welford, outputs) -> _Welford:
    """Add a chunk of draws one by one, so that chunks of any size give the same bits."""

    def step(state: _Welford, output):
        count = state.count + 1
        deviation = jax.tree.map(jnp.subtract, output, state.mean)
        mean = jax.tree.map(lambda m, d: m + d / count, state.mean, deviation)
        square = jax.tree.map(lambda s, d, y, m: s + d * (y - m), state.square, deviation, output, mean)
        return _Welford(count, mean, square), None

    return jax.lax.scan(step, state, outputs)[0]


@jax.jit
def _moments(state: _Welford) -> Moments:
    return Moments(state.mean, jax.tree.map(lambda s: s / state.count, state.square))


def _check_probabilities(draws) -> None:
    """Raise ValueError unless the first of the draws [draws, n, classes] holds probabilities, or NaN."""
    try:
        checks.probability_axes("its outputs", draws, ("draws", "n", "classes"))
        if checks.is_concrete(draws):
            rows = np.asarray(draws)[0]
            checks.probability_rows(rows[~np.isnan(rows).any(axis=1)], checks.tolerance(draws.dtype))
    except ValueError as error:
        raise ValueError(f"apply must return probabilities, jax.nn.softmax of logits: {error}") from None


@jax.jit
def _with_entropies(probs):
    """Return `probs`, NaN in rows that are not probabilities, and their entropies."""
    probs = checks.as_float(probs)
    probs = probs * nan_if(~are_probabilities(probs)).astype(probs.dtype)[..., None]
    return probs, per_example_entropy(probs)


@jax.jit
def _prediction(moments: Moments) -> Prediction:
    (probs, expected_entropy, rest), (variance, _, rest_variance) = moments
    total = per_example_entropy(probs)
    predicted = jnp.argmax(probs, axis=-1, keepdims=True)
    return Prediction(
        probs=probs,
        variance=variance,
        std=standard_deviation(jnp.take_along_axis(variance, predicted, axis=-1)[:, 0]),
        entropy=total,
        expected_entropy=expected_entropy,
        mutual_information=jnp.maximum(total - expected_entropy, 0.0),  # negative only by rounding
        latent_variance=jnp.mean(rest_variance[0], axis=-1) if rest_variance else None,
        features=rest[0] if rest else None,
        others=rest[1:],
    )


def _sizes(apply: Apply, q: Posterior, x, draws: int, chunk: int | None, batch: int | None):
    given = {"draws": draws, "chunk": chunk, "batch": batch}
    ranges.check(**{name: value for name, value in given.items() if value is not None})
    n = _length(x)
    if chunk is None or batch is None:
        chosen = batch_size.choose(apply, q.mean, x, draws)
        chunk, batch = chunk or chosen.draws, batch or chosen.examples
    return min(chunk, draws), min(batch, n)


def _length(x) -> int:
    lengths = {a.shape[0] if a.ndim else 0 for a in jax.tree.leaves(x)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"x must have examples along the first axis of each array, got {sorted(lengths)}")
    return lengths.pop()
