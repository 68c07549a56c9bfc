"""Alignment of two models' predictive stds: correlations, a Gaussian fit and a kernel density estimate."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from byov_jax.evaluation import bootstrap, checks
from byov_jax.evaluation.bootstrap import Interval

Vector = Real[Array | np.ndarray, "..."]
Points = Real[Array | np.ndarray, "..."]


class Correlations(NamedTuple):
    """Two correlation coefficients, each with its bootstrap interval."""

    pearson: Interval
    spearman: Interval


class Gaussian(NamedTuple):
    """A bivariate Gaussian."""

    mean: Float[Array, "2"]
    covariance: Float[Array, "2 2"]


class Alignment(NamedTuple):
    """The data of the figure of two models' predictive stds, one point per image.

    Attributes:
      x: the std of one model.
      y: the std of the other.
      pearson: linear correlation of `x` and `y`.
      spearman: rank correlation of `x` and `y`.
      mean: the mean of the points.
      covariance: their covariance (ddof 1).
      grid_x: where the density is evaluated along x, three kernel widths beyond all points.
      grid_y: the same along y.
      density: the kernel estimate; `density[i, j]` is at `(grid_x[j], grid_y[i])`, as contour plots expect.
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
    """Compare the predictive stds of two models on the same images.

    Args:
      key: seeds the bootstrap.
      x: one model's std for each image, [n].
      y: the other's, [n].
      repeats: resamples of the bootstrap.
      grid: points of the density along each axis.
      level: nominal coverage of the confidence intervals.

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
    queries = jnp.stack(jnp.meshgrid(grid_x, grid_y), axis=-1).reshape(-1, 2)
    density = gaussian_kde(points, queries).reshape(grid, grid)
    coefficients = correlations(key, x, y, repeats, level)
    return Alignment(x, y, *coefficients, *gaussian_fit(points), grid_x, grid_y, density)


def correlations(key: Array, x: Vector, y: Vector, repeats: int = 1000, level: float = 0.95) -> Correlations:
    """Compute `pearson` and `spearman` with percentile intervals over the same resampled pairs."""
    x, y = _pair(x, y)
    replicates = _resampled(bootstrap.indices(key, len(x), repeats), x, y)
    return Correlations(
        bootstrap.estimate(_pearson(x, y), replicates[0], level),
        bootstrap.estimate(_spearman(x, y), replicates[1], level),
    )


def pearson(x: Vector, y: Vector) -> Float[Array, ""]:
    """Linear correlation `cov(x, y) / (std(x) std(y))` of [n] and [n]; NaN if either is constant."""
    return _pearson(*_pair(x, y))


def spearman(x: Vector, y: Vector) -> Float[Array, ""]:
    """`pearson` of the ranks, where equal values share their mean rank; NaN if either is constant."""
    return _spearman(*_pair(x, y))


@jax.jit
def _resampled(indices, x, y) -> tuple[Array, Array]:
    """Compute both coefficients on every resample, [repeats] each."""
    return jax.lax.map(lambda i: (_pearson(x[i], y[i]), _spearman(x[i], y[i])), indices, batch_size=50)


@jax.jit
def _pearson(x, y) -> Float[Array, ""]:
    def centred(values):
        # In units of the range no square underflows, and a constant gives 0 / 0 = NaN.
        values = (values - jnp.min(values)) / (jnp.max(values) - jnp.min(values))
        return values - jnp.mean(values)

    x, y = centred(x), centred(y)
    product, square_x, square_y = (jnp.sum(a * b) for a, b in ((x, y), (x, x), (y, y)))
    return jnp.clip(product / jnp.sqrt(square_x) / jnp.sqrt(square_y), -1.0, 1.0)


@jax.jit
def _spearman(x, y) -> Float[Array, ""]:
    return _pearson(*(jax.scipy.stats.rankdata(values).astype(values.dtype) for values in (x, y)))


def gaussian_fit(points: Points) -> Gaussian:
    """Mean and covariance (ddof 1) of points [n, 2]."""
    points = _planar("points", points)
    mean = jnp.mean(points, axis=0)
    centred = points - mean[None]
    covariance = jnp.matmul(centred.T, centred, precision=jax.lax.Precision.HIGHEST) / (len(points) - 1)
    return Gaussian(mean, covariance)


def gaussian_kde(points: Points, queries: Points) -> Float[Array, "m"]:
    """Density at `queries` [m, 2] of the mixture of Gaussians around `points` [n, 2].

    `1/n sum_i N(query; point_i, h^2 covariance)` with `h = n^(-1/6)`, which in two dimensions is both Scott's
    and Silverman's rule. Unlike `jax.scipy.stats.gaussian_kde` it is exact far from the origin in float32.

    Raises:
      ValueError: if the points lie on a line, where their covariance is singular.
    """
    points, queries = _planar("points", points), _planar("queries", queries)
    factor = _factor(points)
    if checks.is_concrete(factor) and not _is_regular(factor, points):
        raise ValueError(f"the {len(points)} points lie on a line: their covariance is singular")
    return _density(points, queries, factor)


@jax.jit
def _factor(points: Float[Array, "n 2"]) -> Float[Array, "2 2"]:
    """Return upper triangular `R` with `R^T R = covariance`; QR keeps the digits that squaring loses."""
    centred = points - jnp.mean(points, axis=0)[None]
    return jnp.linalg.qr(centred, mode="r") / max(len(points) - 1, 1) ** 0.5


def _is_regular(factor: Array, points: Array) -> bool:
    """Whether the std of x, and of the residuals of y regressed on x, exceed rounding errors."""
    if len(points) < 3:
        return False
    rounding = 8 * jnp.finfo(points.dtype).eps * jnp.max(jnp.abs(points), axis=0)
    return bool(jnp.all(jnp.abs(jnp.diagonal(factor)) > rounding))


@jax.jit
def _density(points, queries, factor):
    (a, b), (_, c) = _bandwidth(len(points)) * factor

    def at(query):
        # Differences before whitening: whitening the points first would round off their small distances.
        x, y = query[0] - points[:, 0], query[1] - points[:, 1]
        u = x / a
        v = (y - b * u) / c
        return jnp.mean(jnp.exp(-0.5 * (jnp.square(u) + jnp.square(v))))

    return jax.lax.map(at, queries, batch_size=64) / (2.0 * np.pi * jnp.abs(a * c))


def _bandwidth(n: int) -> float:
    return n ** (-1 / 6)


def _pair(x, y) -> tuple[Array, Array]:
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise ValueError(f"x and y must be [n] and [n] with n above 1, got {x.shape} and {y.shape}")
    checks.finite("x", x)
    checks.finite("y", y)
    return checks.as_float(x), checks.as_float(y)


def _planar(name: str, points) -> Array:
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 1:
        raise ValueError(f"{name} must be [n, 2] with n above 0, got {points.shape}")
    checks.finite(name, points)
    return checks.as_float(points)
