"""The linear probe: multinomial logistic regression on frozen features, solved to its optimum by L-BFGS."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Integer

GRID = tuple(10.0 ** (-k / 2) for k in range(11))
"""The strengths of the penalty that `fit` chooses from: 1 to 1e-5 in half decades."""


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
    l2: Sequence[float] = GRID,
    included: Bool[np.ndarray, "n"] | None = None,
    steps: int = 500,
    tolerance: float = 1e-3,
) -> LinearProbe:
    """The `linear` probe on all examples, with the `l2` that is best on a held-out fifth of them.

    Held out is the last fifth of each class. The strengths are tried from strong to weak, each from the
    solution of the one before, until the held-out likelihood falls. The outcome depends on the data alone.
    """
    included = _check(features, labels, classes, included)
    if not l2 or not all(strength > 0 for strength in l2):
        raise ValueError(f"l2 must be one or more positive numbers, got {l2}")
    held_out = _last_fifth_of_each_class(np.asarray(labels), included, classes)
    if not held_out.any():
        raise ValueError("no class has the 5 examples that choosing l2 needs: use linear(..., l2=...)")
    axes, labels = _principal_axes(features, included), jnp.asarray(labels, jnp.int32)
    head = best = _zeros(axes, classes)
    best_l2, best_nll = max(l2), np.inf
    for strength in sorted(l2, reverse=True):
        # To rank the strengths, rough solutions are enough.
        head = _minimise(axes, labels, included & ~held_out, strength, head, steps, 10 * tolerance)
        nll = float(_nll(head, axes, labels, held_out))
        if nll >= best_nll:
            break
        best, best_l2, best_nll = head, strength, nll
    return _probe(axes, _minimise(axes, labels, included, best_l2, best, steps, tolerance))


def linear(
    features: Float[Array | np.ndarray, "n features"],
    labels: Integer[Array | np.ndarray, "n"],
    *,
    classes: int,
    l2: float,
    included: Bool[np.ndarray, "n"] | None = None,
    steps: int = 500,
    tolerance: float = 1e-3,
) -> LinearProbe:
    """Minimises `mean_i NLL_i + l2 / 2 * sum(weight**2)` over standardised features; the bias is free.

    Args:
      features: one row an example, any finite values; a constant column is harmless.
      labels: integers from 0 to `classes - 1`.
      classes: how many classes there are, in `labels` or not.
      l2: strength of the penalty, positive.
      included: which examples count, all if None. The result is that of these alone; probes on different
        shares of the labels run the same compiled program.
      steps: at most so many L-BFGS steps; 500 are seldom needed.
      tolerance: stops when the norm of the gradient, in coordinates whose curvature is about 1, is below it.
    """
    included = _check(features, labels, classes, included)
    if not l2 > 0:
        raise ValueError(f"l2 must be positive, got {l2}")
    axes, labels = _principal_axes(features, included), jnp.asarray(labels, jnp.int32)
    return _probe(axes, _minimise(axes, labels, included, l2, _zeros(axes, classes), steps, tolerance))


@jax.jit
def probs(probe: LinearProbe, features: Float[Array | np.ndarray, "n features"]) -> Float[Array, "n classes"]:
    """The probability of each class for each row of `features`."""
    standardised = (features - probe.mean[None]) / probe.scale[None]
    return jax.nn.softmax(standardised @ probe.weight + probe.bias[None])


def score(
    probe: LinearProbe,
    features: Float[Array | np.ndarray, "n features"],
    labels: Integer[Array | np.ndarray, "n"],
) -> float:
    """The fraction of examples whose most probable class is their label."""
    _check(features, labels, len(probe.bias))
    return float(jnp.mean(jnp.argmax(probs(probe, features), axis=-1) == labels))


class _Axes(NamedTuple):
    """Standardised features, rotated to their principal axes.

    A rotation leaves the penalty as it is, and shows the curvature that L-BFGS would have to discover.
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
    """Coefficients of `axes.scores` that minimise the penalised mean NLL of the included examples."""
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
    """Mean negative log-likelihood of the included examples."""
    nll = optax.softmax_cross_entropy_with_integer_labels(axes.scores @ head.T, labels)
    return jnp.mean(nll, where=included)


@jax.jit
def _probe(axes: _Axes, head: Float[Array, "classes coefficients"]) -> LinearProbe:
    return LinearProbe(axes.rotation @ head[:, :-1].T, head[:, -1], axes.mean, axes.scale)


def _zeros(axes: _Axes, classes: int) -> Float[Array, "classes coefficients"]:
    return jnp.zeros((classes, axes.scores.shape[1]), axes.scores.dtype)


def _last_fifth_of_each_class(
    labels: np.ndarray, included: np.ndarray, classes: int
) -> Bool[np.ndarray, "n"]:
    held_out = np.zeros(len(labels), bool)
    for c in range(classes):
        places = np.flatnonzero(included & (labels == c))
        held_out[places[len(places) - len(places) // 5 :]] = True
    return held_out


def _check(features, labels, classes: int, included=None) -> Bool[np.ndarray, "n"]:
    """Refuses what cannot be probed; returns which examples count."""
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"features must be [n, features] with n and features above 0, got {features.shape}")
    if labels.shape != (len(features),):
        raise ValueError(f"labels must be [{len(features)}] as there are features, got {labels.shape}")
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
    if not np.isfinite(np.asarray(features)).all():
        raise ValueError("features must be finite, got NaN or infinity")
    included = np.ones(len(features), bool) if included is None else included
    if included.shape != labels.shape or included.dtype != bool or not included.any():
        raise ValueError(f"included must be {len(features)} bools, one or more of them True")
    return included
