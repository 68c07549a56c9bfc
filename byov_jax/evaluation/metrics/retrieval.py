"""Metrics of a representation and of its uncertainty, without a classifier: R@1, R-AUROC and the crop test.

Those of the URL benchmark (Kirchhof et al., 2023). The uncertainty is any number per image; labels only
tell whether nearest neighbours are right.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics.examples import Mask, nan_if, nan_if_invalid, times
from byov_jax.evaluation.metrics.ranking import auroc

_LARGEST_LABEL = 2**31 - 1


def recall_at_1(
    features: Array | np.ndarray, labels: Array | np.ndarray, *, where: Mask = None
) -> Float[Array, ""]:
    """R@1: the fraction of images whose nearest neighbour among all others has the same label.

    The nearest has the highest cosine, and of equally near images the lower index; two whose cosines differ
    by no more than rounding may swap. The image itself is left out by its index: a duplicate of it counts.
    Memory does not grow with n * n.

    Args:
      features: [n, features] floating-point numbers; rows of zeros have no cosine.
      labels: [n] integers, 0 or more.
      where: [n] booleans, False for rows to leave out, as images and as neighbours, which may hold anything;
        None for all rows. Inside jit the result is NaN if fewer than two rows are left, or if one has a
        negative label, a number that is not finite, or zeros only.
    """
    _check(features, labels, where)
    return _recall_at_1(features, labels, where)


def r_auroc(
    features: Array | np.ndarray,
    labels: Array | np.ndarray,
    uncertainty: Array | np.ndarray,
    *,
    where: Mask = None,
) -> Float[Array, ""]:
    """R-AUROC: the AUROC of `-uncertainty` for "the nearest neighbour has the same label".

    The probability that an image with a wrong neighbour is more uncertain than one with a right neighbour;
    ties count one half, so a constant gives .5. NaN if all neighbours are right, or all wrong.

    Args:
      features: as in `recall_at_1`.
      labels: as in `recall_at_1`.
      uncertainty: [n] floating-point numbers, higher for images that are less certain.
      where: as in `recall_at_1`; inside jit the result is NaN as well if an uncertainty is not finite.
    """
    _check(features, labels, where)
    _check_uncertainty("uncertainty", uncertainty, len(features), where)
    return _r_auroc(features, labels, uncertainty, where)


def crop_test(uncertainty: Array | np.ndarray, uncertainty_of_crops: Array | np.ndarray) -> Float[Array, ""]:
    """Fraction of images that are strictly less uncertain than their crop; a constant gives 0.

    Args:
      uncertainty: [n] floating-point numbers. Inside jit the result is NaN if one is not finite.
      uncertainty_of_crops: [n], those of the same images after `images.center_crops`.
    """
    _check_uncertainty("uncertainty", uncertainty, uncertainty.size)
    _check_uncertainty("uncertainty_of_crops", uncertainty_of_crops, uncertainty.size)
    return _crop_test(uncertainty, uncertainty_of_crops)


def _check(features, labels, where) -> None:
    if features.ndim != 2 or len(features) < 2 or not features.shape[1]:
        form = "[n, features] with n above 1 and features above 0"
        raise ValueError(f"features must be {form}, got {list(features.shape)}")
    if not jnp.issubdtype(features.dtype, jnp.floating):
        raise ValueError(f"features must be floating-point numbers, got {features.dtype}")
    if where is not None:
        checks.mask("where", where, len(features))
        if checks.is_concrete(where) and np.sum(np.asarray(where)) == 1:
            raise ValueError("where is True for one row only: it has no neighbour")
    checks.integer_labels(labels, len(features), _LARGEST_LABEL + 1, where)
    if checks.are_concrete(features, where):
        rows = np.asarray(features)
        _check_rows(rows if where is None else rows[np.asarray(where)])


def _check_rows(rows: np.ndarray) -> None:
    dtype = jax.dtypes.canonicalize_dtype(jnp.promote_types(rows.dtype, jnp.float32))
    with np.errstate(over="ignore"):  # refused below
        rows = rows.astype(dtype, copy=False)
    checks.finite("features", rows)
    zero = np.maximum(rows.max(axis=1), -rows.min(axis=1)) < np.finfo(dtype).tiny
    if np.any(zero):
        count = f"{np.sum(zero)} of {len(rows)} rows of features"
        raise ValueError(f"{count} are zero and have no cosine; leave them out with where")


def _check_uncertainty(name: str, values, n: int, where=None) -> None:
    if values.shape != (n,) or not jnp.issubdtype(values.dtype, jnp.floating):
        got = f"{list(values.shape)} of {values.dtype}"
        raise ValueError(f"{name} must be [{n}] floating-point numbers, one per image, got {got}")
    checks.scores(name, values, where)


@jax.jit
def _recall_at_1(features, labels, where):
    correct, counted, invalid = _neighbours(features, labels, where)
    recall = jnp.sum(correct & counted) / jnp.sum(counted)
    return nan_if_invalid(recall.astype(_float(features.dtype)), invalid, counted)


@jax.jit
def _r_auroc(features, labels, uncertainty, where):
    correct, counted, invalid = _neighbours(features, labels, where)
    right, wrong = counted & correct, counted & ~correct
    area = auroc(uncertainty, uncertainty, inside_where=right, outside_where=wrong)
    return times(area, nan_if(invalid))


@jax.jit
def _crop_test(uncertainty, uncertainty_of_crops):
    pair = jnp.stack([checks.as_float(uncertainty), checks.as_float(uncertainty_of_crops)])
    fraction = jnp.sum(pair[0] < pair[1]) / pair.shape[1]
    return times(fraction.astype(pair.dtype), nan_if(~jnp.all(jnp.isfinite(pair))))


def _neighbours(features, labels, where) -> tuple[Bool[Array, "n"], Bool[Array, "n"], Bool[Array, ""]]:
    """Return whose neighbour has the same label, which rows count, and whether one of these is invalid."""
    features, labels = jax.lax.stop_gradient(jnp.asarray(features)), jnp.asarray(labels)
    counted = jnp.ones(len(features), bool) if where is None else jnp.asarray(where)
    if labels.dtype.itemsize < 4:  # the largest label may not fit into 8 bits
        labels = labels.astype(jnp.int32)
    largest = jnp.max(jnp.abs(checks.as_float(features)), axis=1)
    has_direction = jnp.isfinite(largest) & (largest >= jnp.finfo(largest.dtype).tiny)
    valid = has_direction & (labels >= 0) & (labels <= _LARGEST_LABEL)
    invalid = jnp.any(counted & ~valid) | (jnp.sum(counted) < 2)
    return labels[nearest_other(features, counted)] == labels, counted, invalid


@partial(jax.jit, static_argnames="block")
def nearest_other(
    features: Float[Array, "n features"], counted: Bool[Array, "n"], block: int = 1024
) -> Int32[Array, "n"]:
    """Find the row with the highest cosine to each row, itself left out; of equals, the lower.

    Args:
      features: rows that are finite and not zero where they count.
      counted: which rows may be neighbours.
      block: rows that are compared with as many others at a time.
    """
    n, size, dtype = len(features), min(block, len(features)), _float(features.dtype)
    none = (jnp.array(-jnp.inf, dtype), jnp.array(0, jnp.int32))

    def search(query: tuple[Array, Array]) -> Array:
        """Search for one row; `lax.map` vectorises it over a block of them."""
        index, direction = query[0], _unit(query[1].astype(dtype))

        def merge(best: tuple[Array, Array], start: Array) -> tuple[tuple[Array, Array], None]:
            # The last block starts early enough to be full, which saves a padded copy of the features.
            begin = jnp.minimum(start, n - size)
            others, allowed = (jax.lax.dynamic_slice_in_dim(x, begin, size) for x in (features, counted))
            row = begin + jnp.arange(size, dtype=jnp.int32)
            # bfloat16, the default of a TPU, would not resolve the order of near neighbours.
            cosine = jnp.matmul(_unit(others.astype(dtype)), direction, precision=jax.lax.Precision.HIGHEST)
            cosine = jnp.where(allowed & (row != index) & (row >= start), cosine, -jnp.inf)
            highest = jnp.max(cosine)
            lowest_row = jnp.min(jnp.where(cosine == highest, row, n))  # on a CPU argmax takes twice as long
            nearer = highest > best[0]  # of equals, the one in an earlier block stays
            return (jnp.where(nearer, highest, best[0]), jnp.where(nearer, lowest_row, best[1])), None

        return jax.lax.scan(merge, none, jnp.arange(0, n, size, dtype=jnp.int32))[0][1]

    return jax.lax.map(search, (jnp.arange(n, dtype=jnp.int32), features), batch_size=size)


def _float(dtype):
    return jnp.promote_types(dtype, jnp.float32)


def _unit(rows: Float[Array, "*rows features"]) -> Float[Array, "*rows features"]:
    """Scale rows to length 1."""
    # By the largest entry first: the squares of very large or small values overflow or underflow in float32.
    rows = rows / jnp.max(jnp.abs(rows), axis=-1, keepdims=True)
    return rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
