"""What the metrics refuse outside of jit, and that they only trace inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from byov_jax.evaluation import metrics

P, Y = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]), np.array([0, 2])
ON_PREDICTIONS = {
    "top_k": lambda p, y: metrics.top_k(p, y, 1),
    "nll": metrics.nll,
    "brier": metrics.brier,
    "brier_decomposition": metrics.brier_decomposition,
    "ece": metrics.ece,
    "mce": metrics.mce,
    "adaptive_ece": metrics.adaptive_ece,
    "reliability_bins": metrics.reliability_bins,
    "risk_coverage": metrics.risk_coverage,
    "update": lambda p, y: metrics.Calibration.init(3).update(p, y),
}
BAD_PROBS = [
    (P[0], r"must be \[n, classes\], not empty, with 2 or more classes, got \[3\]"),
    (P[:0], r"got \[0, 3\]"),
    (P[:, :1], r"got \[2, 1\]"),
    (np.eye(3, dtype=int)[:2], "probs must be floating-point probabilities, got int64"),
    (P * [[1, 1, np.nan]], "must be finite"),
    (P - [[0.3, -0.6, 0.3]], r"must lie in \[0, 1\], got -0.2 to 1.4"),
    (P * 1.01, "must sum to 1 within 0.001, got a row with sum 1.01"),
    (P * 0.99, "got a row with sum 0.99"),
]


@pytest.mark.parametrize("name", ON_PREDICTIONS)
@pytest.mark.parametrize(("probs", "problem"), BAD_PROBS)
def test_wrong_probabilities_are_refused(name, probs, problem):
    with pytest.raises(ValueError, match=problem):
        ON_PREDICTIONS[name](probs, Y)


@pytest.mark.parametrize("name", ON_PREDICTIONS)
@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (Y[:1], r"labels must be \[2\], one per row, got \[1\]"),
        (np.eye(2, dtype=int), r"got \[2, 2\]"),
        (Y.astype(np.float32), "labels must be integers, got float32"),
        (Y + 1, "labels must be 0 to 2, got 1 to 3"),
        (Y - 1, "labels must be 0 to 2, got -1 to 1"),
    ],
)
def test_wrong_labels_are_refused(name, labels, problem):
    with pytest.raises(ValueError, match=problem):
        ON_PREDICTIONS[name](P, labels)


@pytest.mark.parametrize("metric", [metrics.mutual_information, metrics.predictive_std])
def test_wrong_draws_are_refused(metric):
    with pytest.raises(ValueError, match=r"draws must be \[draws, n, classes\].* got \[2, 3\]"):
        metric(P)
    with pytest.raises(ValueError, match=r"got \[0, 2, 3\]"):
        metric(np.zeros((0, 2, 3)))
    with pytest.raises(ValueError, match="must sum to 1"):
        metric(P[None] / 2)


def test_entropy_refuses_what_is_no_probability():
    for probs, problem in BAD_PROBS:
        with pytest.raises(ValueError, match=problem):
            metrics.entropy(probs)


@pytest.mark.parametrize("k", [0, 4, -1, 1.0, True])
def test_k_is_a_number_of_classes(k, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as outside of tests
    with pytest.raises(ValueError, match=f"k must be an integer, 1 to 3, got {k}"):
        metrics.top_k(P, Y, k)


@pytest.mark.parametrize("bins", [0, -3, 2.5])
def test_bins_is_a_whole_number(bins, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    calls = [lambda m=m: m(P, Y, bins) for m in (metrics.ece, metrics.mce, metrics.adaptive_ece)]
    for call in [*calls, lambda: metrics.Calibration.init(3, bins)]:
        with pytest.raises(ValueError, match=f"bins must be an integer, 1 or more, got {bins}"):
            call()


def test_rounding_of_the_dtype_is_accepted():
    probs = jax.nn.softmax(jax.random.normal(jax.random.key(0), (64, 1000)) * 4)
    labels = np.zeros(64, np.uint8)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        assert jnp.isfinite(metrics.nll(probs.astype(dtype), labels))
    almost_one = np.array([[np.nextafter(np.float32(1), np.float32(2)), 0]], np.float32)
    assert float(metrics.reliability_bins(almost_one, np.zeros(1, int)).samples[-1]) == 1.0


@pytest.mark.parametrize("name", ON_PREDICTIONS)
def test_inside_jit_shapes_and_dtypes_are_checked_and_values_are_not(name):
    traced = jax.eval_shape(ON_PREDICTIONS[name], P, Y)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(traced))
    with pytest.raises(ValueError, match="labels must be integers"):
        jax.eval_shape(ON_PREDICTIONS[name], P, Y * 0.5)
    with pytest.raises(ValueError, match=r"must be \[n, classes\]"):
        jax.eval_shape(ON_PREDICTIONS[name], P[0], Y)
