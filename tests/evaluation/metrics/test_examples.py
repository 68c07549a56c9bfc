"""Which rows a metric counts, and NaN inside jit where a row cannot be counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluation.metrics.cases import CLASSES, all_cases

from byov_jax.evaluation import metrics

BY_LABELS = {
    "top_k": lambda p, y, **where: metrics.top_k(p, y, 2, **where),
    "nll": metrics.nll,
    "brier": metrics.brier,
    "brier_decomposition": metrics.brier_decomposition,
    "ece": metrics.ece,
    "mce": metrics.mce,
    "adaptive_ece": lambda p, y, **where: metrics.adaptive_ece(p, y, 7, **where),
    "reliability_bins": metrics.reliability_bins,
    "risk_coverage": metrics.risk_coverage,
}
P, Y = (np.concatenate(columns[:5]) for columns in all_cases())  # soft, sharp, tied and one-hot rows
P = P.astype(np.float32)
KEPT = np.random.default_rng(0).random(len(Y)) < 0.6


def accumulated(probs, labels, where=None):
    return metrics.Calibration.init(CLASSES).update(probs, labels, where).compute()


METRICS = BY_LABELS | {"Calibration": accumulated}


def numbers(result) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result)])


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("label", [CLASSES, 255, -1, -4, 2**31 - 1])
def test_an_impossible_label_gives_nan_inside_jit(name, label):
    labels = Y.copy()
    labels[3] = label
    assert np.isfinite(numbers(jax.jit(METRICS[name])(P, Y))).all()
    assert np.isnan(numbers(jax.jit(METRICS[name])(P, labels))).all()
    assert np.isnan(numbers(jax.jit(METRICS[name])(P, labels, where=np.ones(len(Y), bool)))).all()
    if 0 <= label <= 255:
        assert np.isnan(numbers(jax.jit(METRICS[name])(P, labels.astype(np.uint8)))).all()


def test_a_label_that_32_bits_would_wrap_is_impossible_too():
    with jax.enable_x64(True):
        assert np.isnan(jax.jit(metrics.nll)(P, Y + 2**32))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("row", [np.nan, np.inf, 0.5, [3.0, -2.0, 0.0, 0.0]], ids=str)
def test_a_row_without_probabilities_gives_nan_inside_jit(name, row):
    probs = P.copy()
    probs[5] = row
    assert np.isnan(numbers(jax.jit(METRICS[name])(probs, Y))).all()


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("junk", [(np.nan, -1), (np.inf, 255), (-np.inf, 2**31 - 1), (0.0, 99)])
def test_rows_that_are_left_out_may_hold_anything(name, junk):
    probs, labels = P.copy(), Y.copy()
    probs[~KEPT], labels[~KEPT] = junk
    metric, expected = METRICS[name], METRICS[name](P[KEPT], Y[KEPT])
    if name == "risk_coverage":  # its last point is repeated
        pad = lambda curve: np.append(curve, np.full(np.sum(~KEPT), curve[-1]))  # noqa: E731
        expected = expected._replace(coverage=pad(expected.coverage), risk=pad(expected.risk))
    outside, inside = metric(probs, labels, where=KEPT), jax.jit(metric)(probs, labels, where=KEPT)
    np.testing.assert_allclose(numbers(outside), numbers(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(numbers(inside), numbers(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_a_mask_can_be_mapped(name):
    masks = np.stack([KEPT, ~KEPT, np.ones_like(KEPT)])
    mapped = jax.vmap(lambda where: METRICS[name](P, Y, where=where))(masks)
    for i, where in enumerate(masks):
        one = METRICS[name](P, Y, where=where)
        np.testing.assert_allclose(
            numbers(jax.tree.map(lambda x, i=i: x[i], mapped)), numbers(one), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", METRICS)
def test_no_gradient_passes_through_rows_that_are_left_out(name):
    probs, labels = P.copy(), Y.copy()
    probs[~KEPT], labels[~KEPT] = np.nan, -1
    probs[np.flatnonzero(~KEPT)[0]] = -np.inf

    def total(p, y, where):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(METRICS[name](p, y, where=where)))

    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        found = np.asarray(transform(total)(jnp.asarray(probs), labels, KEPT))
        assert not found[~KEPT].any()
        clean = np.asarray(transform(total)(jnp.asarray(P), Y, KEPT))
        np.testing.assert_allclose(found, clean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_no_row_left_is_an_error_and_nan_inside_jit(name):
    nothing = np.zeros(len(Y), bool)
    with pytest.raises(
        ValueError, match=r"where is False everywhere: no row is left|no metrics of 0 samples"
    ):
        METRICS[name](P, Y, where=nothing)
    assert np.isnan(numbers(jax.jit(METRICS[name])(P, Y, where=nothing))).all()


@pytest.mark.parametrize("name", BY_LABELS)
def test_a_mask_is_booleans(name):
    for where in (KEPT.astype(np.float32), KEPT[:-1], KEPT[:, None]):
        with pytest.raises(ValueError, match=rf"where must be \[{len(Y)}\] booleans, got"):
            BY_LABELS[name](P, Y, where=where)
    with pytest.raises(ValueError, match=f"labels must be 0 to {CLASSES - 1}"):
        BY_LABELS[name](P, np.where(KEPT, -1, Y), where=KEPT)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_an_impossible_weight_gives_nan_inside_jit(weight):
    weights = KEPT.astype(np.float32)
    weights[0] = weight
    assert np.isnan(numbers(jax.jit(accumulated)(P, Y, weights))).all()


def test_one_broken_batch_breaks_the_accumulator():
    @jax.jit
    def two_batches(first, second):
        return metrics.Calibration.init(CLASSES).update(P, first).update(P, second).compute()

    assert np.isfinite(numbers(two_batches(Y, Y))).all()
    assert np.isnan(numbers(two_batches(np.full_like(Y, 9), Y))).all()
    assert np.isnan(numbers(two_batches(Y, np.full_like(Y, -1)))).all()
