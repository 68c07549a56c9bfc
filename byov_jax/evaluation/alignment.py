"""Do two models doubt the same images? Correlations of their predictive stds, and the cloud's density."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from byov_jax.evaluation import bootstrap
from byov_jax.evaluation.bootstrap import Interval

Vector = Real[Array | np.ndarray, "..."]


class Correlations(NamedTuple):
    """Two correlation coefficients, each with its bootstrap interval."""

    pearson: Interval
    spearman: Interval


class Gaussian(NamedTuple):
    """A Gaussian in the plane."""

    mean: Float[Array, "2"]
    covariance: Float[Array, "2 2"]


class Alignment(NamedTuple):
    """Everything behind the figure of two models' predictive stds, one point an image.

    Attributes:
      x: the std of one model.
      y: the std of the other.
      pearson: linear correlation of `x` and `y`.
      spearman: rank correlation of `x` and `y`.
      mean: the mean of the cloud.
      covariance: its covariance (ddof 1).
      grid_x: where the density is evaluated along x, beyond all points by three widths of a kernel.
      grid_y: the same along y.
      density: the kernel estimate; `density[i, j]` belongs to `(grid_x[j], grid_y[i])`, as contour plots ask.
    """

    x: Float[Array, "n"]
    y: Float[Array, "n"]
    pearson: Interval
    spearman: Interval
    mean: Float[Array, "2"]
    covariance: Float[Array, "2 2"]
    grid_x: Float[Array, "grid"]
    grid_y: Float[Array, "grid"]
    density: Float[Array, "grid grid"]


def align(
    key: Array, x: Vector, y: Vector, repeats: int = 1000, grid: int = 64, level: float = 0.95
) -> Alignment:
    """Compares the predictive std of two models on the same images.

    Args:
      key: of the bootstrap.
      x: one model's std for each image, [n].
      y: the other's, [n].
      repeats: resamples of the bootstrap.
      grid: points of the density along each axis.
      level: of the confidence intervals.

    Raises:
      ValueError: if the points lie on a line, for instance because one model is deterministic.
    """
    if grid < 2:
        raise ValueError(f"grid must be at least 2, got {grid}")
    x, y = _pair(x, y)
    points = jnp.stack([x, y], axis=1)
    margin = 3.0 * _bandwidth(len(x)) * jnp.std(points, axis=0, ddof=1)
    low, high = jnp.min(points, axis=0) - margin, jnp.max(points, axis=0) + margin
    grid_x, grid_y = jnp.linspace(low, high, grid, axis=1)
    places = jnp.stack(jnp.meshgrid(grid_x, grid_y), axis=-1).reshape(-1, 2)
    density = gaussian_kde(points, places).reshape(grid, grid)
    found = correlations(key, x, y, repeats, level)
    return Alignment(x, y, *found, *gaussian_fit(points), grid_x, grid_y, density)


def correlations(key: Array, x: Vector, y: Vector, repeats: int = 1000, level: float = 0.95) -> Correlations:
    """`pearson` and `spearman` with percentile intervals from resampled pairs, the same pairs for both."""
    x, y = _pair(x, y)
    replicates = _on_resamples(bootstrap.counts(key, len(x), repeats), x, y)
    return Correlations(
        bootstrap.estimate(pearson(x, y), replicates[0], level),
        bootstrap.estimate(spearman(x, y), replicates[1], level),
    )


def pearson(x: Vector, y: Vector) -> Float[Array, ""]:
    """Linear correlation `cov(x, y) / (std(x) std(y))` of [n] and [n]; NaN if either is constant."""
    x, y = _pair(x, y)
    return _pearson(x, y, jnp.ones_like(x))


def spearman(x: Vector, y: Vector) -> Float[Array, ""]:
    """`pearson` of the ranks, where equal values share their mean rank; NaN if either is constant."""
    x, y = _pair(x, y)
    return _spearman(_ties(x), _ties(y), jnp.ones_like(x))


@jax.jit
def _on_resamples(counts: Float[Array, "repeats n"], x, y) -> tuple[Array, Array]:
    """Pearson's and Spearman's coefficient on every resample, [repeats] each."""
    ties_x, ties_y = _ties(x), _ties(y)

    def both(times):
        times = times.astype(x.dtype)
        return _pearson(x, y, times), _spearman(ties_x, ties_y, times)

    return jax.lax.map(both, counts, batch_size=50)


@jax.jit
def _pearson(x, y, times: Float[Array, "n"]) -> Float[Array, ""]:
    """Correlation of the pairs `(x[i], y[i])`, each of which occurs `times[i]` times."""
    present = times > 0

    def centred(values):
        low = jnp.min(values, where=present, initial=jnp.inf)
        high = jnp.max(values, where=present, initial=-jnp.inf)
        # In units of the range no square underflows, and a constant is 0 / 0: NaN, as it should be.
        values = jnp.where(present, (values - low) / (high - low), 0.0)
        return values - jnp.sum(times * values) / jnp.sum(times)

    x, y = centred(x), centred(y)
    product, square_x, square_y = (jnp.sum(times * a * b) for a, b in ((x, y), (x, x), (y, y)))
    return jnp.clip(product / jnp.sqrt(square_x) / jnp.sqrt(square_y), -1.0, 1.0)


class _Ties(NamedTuple):
    """The order of the values, and for each value how many are below it and how many are not above it."""

    order: Array
    below: Array
    upto: Array


@jax.jit
def _ties(values) -> _Ties:
    order = jnp.argsort(values)
    ordered = values[order]
    below, upto = (jnp.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return _Ties(order, below, upto)


@jax.jit
def _spearman(ties_x: _Ties, ties_y: _Ties, times: Float[Array, "n"]) -> Float[Array, ""]:
    """Rank correlation when pair `i` occurs `times[i]` times: resamples are ranked without sorting them."""

    def mean_ranks(ties):
        total = jnp.pad(jnp.cumsum(times[ties.order]), (1, 0))
        return (total[ties.below] + 1.0 + total[ties.upto]) / 2.0

    return _pearson(mean_ranks(ties_x), mean_ranks(ties_y), times)


def gaussian_fit(points: Real[Array | np.ndarray, "..."]) -> Gaussian:
    """Mean and covariance (ddof 1) of points in the plane, [n, 2]."""
    points = _planar("points", points)
    mean = jnp.mean(points, axis=0)
    centred = points - mean[None]
    covariance = jnp.matmul(centred.T, centred, precision=jax.lax.Precision.HIGHEST) / (len(points) - 1)
    return Gaussian(mean, covariance)


def ellipse(fit: Gaussian, level: float = 0.95, corners: int = 128) -> Float[Array, "corners 2"]:
    """A closed outline, to be drawn, of the smallest region that holds `level` of the Gaussian's mass.

    There `(p - mean)^T covariance^-1 (p - mean) = -2 log(1 - level)`.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be above 0 and below 1, got {level}")
    angle = jnp.linspace(0.0, 2.0 * np.pi, corners, dtype=fit.mean.dtype)
    circle = np.sqrt(-2.0 * np.log1p(-level)) * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    variance, axes = jnp.linalg.eigh(fit.covariance)
    stretch = axes * jnp.sqrt(jnp.maximum(variance, 0.0))[None]
    return fit.mean[None] + jnp.matmul(circle, stretch.T, precision=jax.lax.Precision.HIGHEST)


def gaussian_kde(
    points: Real[Array | np.ndarray, "..."], places: Real[Array | np.ndarray, "..."]
) -> Float[Array, "m"]:
    """Density at `places` [m, 2] of the mixture of Gaussians around `points` [n, 2].

    `1/n sum_i N(place; point_i, h^2 covariance)` with `h = n^(-1/6)`, which in the plane is both Scott's and
    Silverman's rule.

    Raises:
      ValueError: if the points lie on a line, where their covariance is singular.
    """
    points, places = _planar("points", points), _planar("places", places)
    factor = _factor(points)
    if not isinstance(factor, jax.core.Tracer) and not _is_regular(factor, points):
        raise ValueError(f"the {len(points)} points lie on a line: their covariance is singular")
    return _density(points, places, factor)


@jax.jit
def _factor(points: Float[Array, "n 2"]) -> Float[Array, "2 2"]:
    """Upper triangular `R` with `R^T R = covariance`; by QR, which keeps the digits that squaring loses."""
    centred = points - jnp.mean(points, axis=0)[None]
    return jnp.linalg.qr(centred, mode="r") / max(len(points) - 1, 1) ** 0.5


def _is_regular(factor: Array, points: Array) -> bool:
    """Whether the spread of x, and that of y around its regression on x, is more than rounding errors."""
    if len(points) < 3:
        return False
    rounding = 8 * jnp.finfo(points.dtype).eps * jnp.max(jnp.abs(points), axis=0)
    return bool(jnp.all(jnp.abs(jnp.diagonal(factor)) > rounding))


@jax.jit
def _density(points, places, factor):
    (a, b), (_, c) = _bandwidth(len(points)) * factor

    def at(place):
        # Differences first: to whiten the points alone would round off what sets near ones apart.
        x, y = place[0] - points[:, 0], place[1] - points[:, 1]
        u = x / a
        v = (y - b * u) / c
        return jnp.mean(jnp.exp(-0.5 * (jnp.square(u) + jnp.square(v))))

    return jax.lax.map(at, places, batch_size=64) / (2.0 * np.pi * jnp.abs(a * c))


def _bandwidth(n: int) -> float:
    return n ** (-1 / 6)


def _pair(x, y) -> tuple[Array, Array]:
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise ValueError(f"x and y must be [n] and [n] with n above 1, got {x.shape} and {y.shape}")
    _check_finite("x", x)
    _check_finite("y", y)
    return _floating(x), _floating(y)


def _planar(name: str, points) -> Array:
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 1:
        raise ValueError(f"{name} must be [n, 2] with n above 0, got {points.shape}")
    _check_finite(name, points)
    return _floating(points)


def _floating(x) -> Array:
    """As a floating-point array of at least 32 bits."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _check_finite(name: str, x) -> None:
    if not isinstance(x, jax.core.Tracer) and not bool(jnp.all(jnp.isfinite(x))):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
