"""AUROC, AUPR, FPR95 and the risk-coverage curve: known values, scikit-learn, and ties in any order."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from evaluation.metrics.cases import all_cases

from byov_jax.evaluation import metrics

INSIDE, OUTSIDE = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0.45, 0.9, 0.7, 0.35, 0.8])
RANKINGS = (metrics.auroc, metrics.aupr, metrics.fpr95)


def test_the_area_by_hand():
    with jax.enable_x64(True):
        assert metrics.auroc(INSIDE, OUTSIDE) == 0.75


def reference(inside, outside):
    truth, scores = np.repeat([0, 1], [len(inside), len(outside)]), np.concatenate([inside, outside])
    false, true, _ = sklearn.metrics.roc_curve(truth, scores, drop_intermediate=False)
    return (
        sklearn.metrics.roc_auc_score(truth, scores),
        sklearn.metrics.average_precision_score(truth, scores),
        false[true >= 0.95].min(),
    )


@pytest.mark.parametrize(("n", "m", "x64"), [(30, 20, True), (7, 61, False)])
def test_they_are_those_of_scikit_learn(n, m, x64):
    rng = np.random.default_rng(n)
    cases = 1000
    inside, outside = rng.normal(size=(cases, n)), rng.normal(size=(cases, m)) + rng.normal(size=(cases, 1))
    coarse = np.arange(cases) % 3  # continuous scores, few distinct ones, hardly any
    for step, kind in ((0.5, 1), (2.0, 2)):
        inside[coarse == kind], outside[coarse == kind] = (
            np.round(x[coarse == kind] / step) * step for x in (inside, outside)
        )
    inside[:6] = 0.0  # all equal, on one side and on both
    outside[:3] = 0.0
    expected = np.array([reference(*pair) for pair in zip(inside, outside, strict=True)])
    with jax.enable_x64(x64):
        together = jax.jit(jax.vmap(lambda a, b: jnp.stack([metric(a, b) for metric in RANKINGS])))
        found = together(jnp.asarray(inside), jnp.asarray(outside))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 if x64 else 1e-6)


def test_perfect_reversed_and_equal_scores():
    low, high = np.arange(40.0), np.arange(40.0) + 100
    assert [float(metric(low, high)) for metric in RANKINGS] == [1.0, 1.0, 0.0]
    assert [float(metric(high, low)) for metric in (metrics.auroc, metrics.fpr95)] == [0.0, 1.0]
    assert [float(metric(low * 0, high * 0)) for metric in RANKINGS] == [0.5, 0.5, 1.0]


def test_many_scores_do_not_overflow():
    """100,000 familiar and shifted samples are 10 billion pairs."""
    low, high = np.arange(1e5), np.arange(1e5) + 50_000
    np.testing.assert_allclose(metrics.auroc(low, high), 1 - 0.5 * 0.5**2, atol=1e-5)


@pytest.mark.parametrize(
    ("inside", "outside", "problem"),
    [
        (INSIDE[:, None], OUTSIDE, r"inside must be \[n\] with n above 0, got \[4, 1\]"),
        (INSIDE, OUTSIDE[:0], r"outside must be \[n\] with n above 0, got \[0\]"),
        (INSIDE, np.array([1.0, np.nan]), "outside must be finite"),
        (np.array([np.inf]), OUTSIDE, "inside must be finite"),
        (INSIDE * 1j, OUTSIDE, "inside must be real numbers, got complex128"),
    ],
)
def test_wrong_scores_are_refused(inside, outside, problem):
    for metric in RANKINGS:
        with pytest.raises(ValueError, match=problem):
            metric(inside, outside)


@pytest.mark.parametrize("metric", RANKINGS)
def test_labels_are_not_scores(metric):
    """The arguments of scikit-learn, labels and scores, would give a number too."""
    truth, scores = np.repeat([0, 1], [4, 5]), np.concatenate([INSIDE, OUTSIDE])
    order = "the arguments are the scores of in-distribution samples, then those of shifted ones"
    for labels in (truth, truth == 1, jnp.asarray(truth), truth.astype(np.uint8)):
        for call in (metric, jax.jit(metric)):
            with pytest.raises(ValueError, match=rf"inside must be floating-point scores, got .*: {order}"):
                call(labels, scores)
            with pytest.raises(ValueError, match=rf"outside must be floating-point scores, got .*: {order}"):
                call(scores, labels)
    with pytest.raises(ValueError, match=f"inside has only the values 0 and 1, like labels: {order}"):
        metric(truth.astype(np.float32), scores)


def test_scores_may_be_zero_or_one():
    hard, soft = np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0])
    assert metrics.auroc(soft, hard) == pytest.approx(2 / 3)
    assert metrics.auroc(soft, np.array([0.2, 0.3, 0.4, 0.5])) == pytest.approx(2 / 3)
    assert metrics.auroc(np.zeros(3), np.array([0.0, 0.1, 0.2])) == pytest.approx(5 / 6)
    assert metrics.auroc(soft + 1, np.array([1.2, 1.3, 1.4])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("metric", RANKINGS)
def test_scores_that_are_left_out_may_be_anything(metric):
    inside = np.array([np.nan, *INSIDE, np.inf, -np.inf])
    outside = np.array([*OUTSIDE[:2], -np.inf, np.nan, *OUTSIDE[2:], np.inf])
    masks = {"inside_where": np.isfinite(inside), "outside_where": np.isfinite(outside)}
    expected = metric(INSIDE, OUTSIDE)
    np.testing.assert_allclose(metric(inside, outside, **masks), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(metric)(inside, outside, **masks), expected, rtol=1e-6)
    gradient = jax.grad(lambda x: metric(x, outside, **masks))(jnp.asarray(inside))
    np.testing.assert_array_equal(gradient, np.zeros(len(inside)))
    with pytest.raises(ValueError, match="inside must be finite"):
        metric(inside, outside, outside_where=masks["outside_where"])
    for nothing in ({"inside_where": np.zeros(7, bool)}, {"outside_where": np.zeros(8, bool)}):
        with pytest.raises(ValueError, match="where is False everywhere: no row is left"):
            metric(inside, outside, **masks | nothing)
        assert np.isnan(jax.jit(metric)(inside, outside, **masks | nothing))


@pytest.mark.parametrize("metric", RANKINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_gives_nan_inside_jit(metric, value):
    assert np.isnan(jax.jit(metric)(np.append(INSIDE, value), OUTSIDE))
    assert np.isnan(jax.jit(metric)(INSIDE, np.append(OUTSIDE, value)))


of_cases = jax.jit(jax.vmap(metrics.risk_coverage))


def test_a_curve_by_hand():
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
    curve = metrics.risk_coverage(probs, np.array([0, 0, 0, 0]))  # by confidence: right, wrong, right, wrong
    np.testing.assert_allclose(curve.coverage, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 2, 1 / 3, 1 / 2], rtol=1e-6)
    np.testing.assert_allclose(curve.area, np.mean([0, 1 / 2, 1 / 3, 1 / 2]), rtol=1e-6)


def test_ties_give_the_mean_over_their_orders():
    confidence, wrong = np.array([0.9, 0.8, 0.8, 0.8, 0.6, 0.6]), np.array([0, 1, 0, 0, 1, 0])
    probs = np.stack([confidence, 1 - confidence], axis=1)
    curves = [
        np.cumsum(wrong[[0, *first, *second]]) / np.arange(1, 7)
        for first in itertools.permutations([1, 2, 3])
        for second in itertools.permutations([4, 5])
    ]
    curve = metrics.risk_coverage(probs, wrong)
    np.testing.assert_allclose(curve.risk, np.mean(curves, axis=0), rtol=1e-6)
    np.testing.assert_allclose(curve.area, np.mean(curves), rtol=1e-6)


def test_the_order_of_samples_does_not_matter():
    probs, labels = all_cases()
    order = np.random.default_rng(0).permutation(labels.shape[1])
    one, other = of_cases(probs, labels), of_cases(probs[:, order], labels[:, order])
    np.testing.assert_allclose(one.risk, other.risk, rtol=0, atol=1e-6)
    np.testing.assert_allclose(one.area, other.area, rtol=0, atol=1e-6)


def test_without_ties_it_is_the_running_mean_of_the_errors():
    probs, labels = all_cases()
    found = of_cases(probs, labels)
    for i in range(0, len(probs), 4):  # the soft ones
        order = np.argsort(-probs[i].max(axis=1))
        wrong = (np.argmax(probs[i], axis=1) != labels[i])[order]
        np.testing.assert_allclose(found.risk[i], np.cumsum(wrong) / np.arange(1, 65), rtol=0, atol=1e-6)
    error_rate = np.mean(np.argmax(probs, axis=2) != labels, axis=1)
    np.testing.assert_allclose(found.risk[:, -1], error_rate, rtol=0, atol=1e-6)
