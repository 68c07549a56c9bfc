"""The linear probe: multinomial logistic regression on frozen features, solved to its optimum by L-BFGS."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int64, Integer

from byov_jax.evaluation import checks

GRID = tuple(10.0 ** (-k / 2) for k in range(11))
"""The l2 penalties that `fit` selects from by default: 1 to 1e-5 in half decades."""


class LinearProbe(NamedTuple):
    """Class probabilities `softmax((x - mean) / scale @ weight + bias)`."""

    weight: Float[Array, "features classes"]
    bias: Float[Array, "classes"]
    mean: Float[Array, "features"]
    scale: Float[Array, "features"]


def fit(
    features: Float[Array | np.ndarray, "n features"],
    labels: Integer[Array | np.ndarray, "n"],
    *,
    classes: int,
    l2: float | Sequence[float] = GRID,
    included: Bool[np.ndarray, "n"] | None = None,
    steps: int = 500,
    tolerance: float = 1e-3,
) -> LinearProbe:
    """Minimise `mean_i NLL_i + l2 / 2 * sum(weight**2)` over standardised features, with a free bias.

    Of several `l2` it selects the one with the best likelihood on the last fifth of each class, held out, and
    refits on all examples. They are tried from strong to weak, each from the solution of the one before,
    until the held-out likelihood falls. The result depends on the data alone.

    Args:
      features: one row per example, any finite values; a constant column is harmless.
      labels: integers from 0 to `classes - 1`.
      classes: number of classes, including those absent from `labels`.
      l2: strength of the penalty, or several to select from.
      included: which examples to use, all if None. Probes on different subsets share a compiled program.
      steps: at most this many L-BFGS steps; 500 are rarely needed.
      tolerance: stops when the norm of the gradient, in coordinates whose curvature is about 1, is below it.
    """
    checks.features("features", features)
    checks.integer_labels(labels, len(features), classes)
    included = np.ones(len(features), bool) if included is None else included
    if included.shape != labels.shape or included.dtype != bool or not included.any():
        raise ValueError(f"included must be {len(features)} bools, one or more of them True")
    strengths = l2 if isinstance(l2, Sequence) else (l2,)
    if not strengths or not all(strength > 0 for strength in strengths):
        raise ValueError(f"l2 must be one or more positive numbers, got {l2}")
    held_out = _last_fifth_of_each_class(np.asarray(labels), included, classes)
    if isinstance(l2, Sequence) and not held_out.any():
        raise ValueError("no class has the 5 examples that selecting l2 needs: pass a single l2")
    axes, labels = _principal_axes(features, included), jnp.asarray(labels, jnp.int32)
    head = jnp.zeros((classes, axes.scores.shape[1]), axes.scores.dtype)
    if isinstance(l2, Sequence):
        # Rough solutions are enough to rank the penalties.
        l2, head = _select_l2(axes, labels, included & ~held_out, held_out, l2, head, steps, 10 * tolerance)
    return _probe(axes, _minimise(axes, labels, included, l2, head, steps, tolerance))


@jax.jit
def probs(probe: LinearProbe, features: Float[Array | np.ndarray, "n features"]) -> Float[Array, "n classes"]:
    """Predict class probabilities for each row of `features`."""
    standardised = (features - probe.mean[None]) / probe.scale[None]
    return jax.nn.softmax(standardised @ probe.weight + probe.bias[None])


def stratified_subset(
    labels: Array | np.ndarray, fraction: float, *, classes: int, seed: int = 0
) -> Int64[np.ndarray, "chosen"]:
    """Choose `round(fraction * n_c)` of the `n_c` examples of each class, but at least one if there is any.

    Subsets of one seed are nested: 1% is contained in 10%. Which examples of a class are chosen depends on
    the seed, the class and `n_c` only. With fewer than 5 examples per class, `fit` needs a single `l2`.

    Args:
      labels: [n] integers from 0 to `classes - 1`.
      fraction: above 0, at most 1.
      classes: number of classes, including those absent from `labels`.
      seed: at least 0.

    Returns:
      The indices of the chosen examples, in increasing order.
    """
    labels = np.asarray(labels)
    if not labels.size:
        raise ValueError("labels must not be empty")
    checks.integer_labels(labels, labels.size, classes)
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"fraction={fraction}; allowed: above 0, at most 1")
    if seed < 0:
        raise ValueError(f"seed={seed}; allowed: 0 or more")
    chosen = []
    for c in range(classes):
        rows = np.flatnonzero(labels == c)
        # A larger fraction takes more of the same order, which nests the subsets.
        order = np.random.default_rng([seed, c]).permutation(rows)
        chosen.append(order[: max(round(fraction * len(rows)), 1)])
    return np.sort(np.concatenate(chosen))


class _Axes(NamedTuple):
    """Standardised features, rotated to their principal axes.

    A rotation leaves the penalty as it is, and exposes the curvature that L-BFGS would have to discover.
    """

    mean: Float[Array, "features"]
    scale: Float[Array, "features"]
    rotation: Float[Array, "features features"]
    variance: Float[Array, "features"]
    scores: Float[Array, "n coefficients"]  # the last column is 1: its coefficient is the bias


@jax.jit
def _principal_axes(features, included) -> _Axes:
    x, rows = features.astype(jnp.float32), included[:, None]
    mean, std = jnp.mean(x, axis=0, where=rows), jnp.std(x, axis=0, where=rows)
    size = jnp.max(jnp.abs(x), axis=0, where=rows, initial=0.0)
    scale = jnp.where(std > 1e-6 * size, std, 1.0)  # a constant column has the std of its rounding errors
    z = (x - mean[None]) / scale[None]
    variance, rotation = jnp.linalg.eigh(z.T @ jnp.where(rows, z, 0.0) / jnp.sum(included))
    scores = jnp.concatenate([z @ rotation, jnp.ones((len(z), 1), z.dtype)], axis=1)
    return _Axes(mean, scale, rotation, jnp.maximum(variance, 0.0), scores)


def _select_l2(axes: _Axes, labels, included, held_out, l2, head, steps, tolerance) -> tuple[float, Array]:
    """Return the penalty with the best likelihood on held-out examples, and its coefficients."""
    best, best_l2, best_nll = head, max(l2), np.inf
    for strength in sorted(l2, reverse=True):
        head = _minimise(axes, labels, included, strength, head, steps, tolerance)
        nll = float(_nll(head, axes, labels, held_out))
        if nll >= best_nll:
            break
        best, best_l2, best_nll = head, strength, nll
    return best_l2, best


@jax.jit
def _minimise(
    axes: _Axes,
    labels: Integer[Array, "n"],
    included: Bool[Array | np.ndarray, "n"],
    l2,
    head: Float[Array, "classes coefficients"],
    steps,
    tolerance,
) -> Float[Array, "classes coefficients"]:
    """Return the coefficients of `axes.scores` with the least penalised mean NLL of the included examples."""
    # The Hessian is at most variance / 2 + l2 (Boehning 1992): in units of its root, curvatures are below 1.
    unit = jax.lax.rsqrt(jnp.append(axes.variance / 2.0 + l2, 0.5))[None]

    def objective(coordinates):
        head = coordinates * unit
        return _nll(head, axes, labels, included) + l2 / 2.0 * jnp.sum(jnp.square(head[:, :-1]))

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def unfinished(carry):
        _, state, step = carry
        slope = jnp.linalg.norm(optax.tree.get(state, "grad"))
        return (step == 0) | ((step < steps) & (slope > tolerance))

    def advance(carry):
        coordinates, state, step = carry
        value, grad = value_and_grad(coordinates, state=state)
        updates, state = solver.update(grad, state, coordinates, value=value, grad=grad, value_fn=objective)
        return optax.apply_updates(coordinates, updates), state, step + 1

    start = head / unit
    coordinates, *_ = jax.lax.while_loop(unfinished, advance, (start, solver.init(start), 0))
    return coordinates * unit


@jax.jit
def _nll(head, axes: _Axes, labels, included) -> Float[Array, ""]:
    """Compute the mean negative log-likelihood of the included examples."""
    nll = optax.softmax_cross_entropy_with_integer_labels(axes.scores @ head.T, labels)
    return jnp.mean(nll, where=included)


@jax.jit
def _probe(axes: _Axes, head: Float[Array, "classes coefficients"]) -> LinearProbe:
    return LinearProbe(axes.rotation @ head[:, :-1].T, head[:, -1], axes.mean, axes.scale)


def _last_fifth_of_each_class(
    labels: np.ndarray, included: np.ndarray, classes: int
) -> Bool[np.ndarray, "n"]:
    held_out = np.zeros(len(labels), bool)
    for c in range(classes):
        rows = np.flatnonzero(included & (labels == c))
        held_out[rows[len(rows) - len(rows) // 5 :]] = True
    return held_out
