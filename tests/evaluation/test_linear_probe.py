"""The linear probe: the optimum of its objective, the choice of l2, and what it refuses."""

import chex
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from byov_jax.data.sources import fashion_mnist
from byov_jax.evaluation import linear_probe, metrics

CLASSES = 4
N, FEATURES = 300, 16  # the same in most tests: each new shape compiles for seconds


def examples(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four overlapping Gaussian classes in 8 correlated features, and 8 features that tell nothing."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, N)
    centres, mixing = np.random.default_rng(99).normal(size=(2, 8, 8))
    x = (centres[labels] + 1.5 * rng.normal(size=(N, 8))) @ (np.eye(8) + mixing / 4)
    return np.concatenate([x, rng.normal(size=(N, 8))], axis=1).astype(np.float32), labels.astype(np.int32)


X, LABELS = examples()


def accuracy(probe: linear_probe.LinearProbe, x, labels: np.ndarray) -> float:
    return float(metrics.top_k(linear_probe.probs(probe, x), labels, 1))


class Reference:
    """The same objective in float64, minimised by scipy."""

    def __init__(self, x: np.ndarray, labels: np.ndarray, l2: float):
        x, onehot = x.astype(np.float64), np.eye(CLASSES)[labels]
        self.mean, self.std, d = x.mean(axis=0), x.std(axis=0), x.shape[1]

        def objective(flat):
            weight, bias = flat[:-CLASSES].reshape(d, CLASSES), flat[-CLASSES:]
            logp = self.log_probs(x, weight, bias)
            residual = (np.exp(logp) - onehot) / len(x)
            value = -np.mean(np.sum(onehot * logp, axis=1)) + l2 / 2 * np.sum(weight**2)
            slope = ((x - self.mean) / self.std).T @ residual + l2 * weight
            return value, np.append(slope, residual.sum(axis=0))

        options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10_000}
        start = np.zeros((d + 1) * CLASSES)
        found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        self.weight, self.bias = found.x[:-CLASSES].reshape(d, CLASSES), found.x[-CLASSES:]
        self.minimum = found.fun

    def log_probs(self, x, weight=None, bias=None):
        weight, bias = (self.weight, self.bias) if weight is None else (weight, bias)
        return scipy.special.log_softmax((x - self.mean) / self.std @ weight + bias, axis=1)


@pytest.mark.parametrize("l2", [1e-3, 0.1, 3.0])
def test_it_finds_the_optimum_that_scipy_finds(l2):
    found = linear_probe.fit(X, LABELS, classes=CLASSES, l2=l2, tolerance=1e-5)
    expected = Reference(X, LABELS, l2)
    np.testing.assert_allclose(found.weight, expected.weight, atol=1e-3)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-3)
    np.testing.assert_allclose(linear_probe.probs(found, X), np.exp(expected.log_probs(X)), atol=1e-4)


@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_the_default_tolerance_is_close_to_the_minimum(l2):
    found = linear_probe.fit(X, LABELS, classes=CLASSES, l2=l2)
    nll = -np.mean(np.log(np.asarray(linear_probe.probs(found, X))[np.arange(N), LABELS]))
    value = nll + l2 / 2 * float(jnp.sum(found.weight**2))
    assert abs(value - Reference(X, LABELS, l2).minimum) < 1e-4


def test_it_stops_after_the_given_steps():
    one, two, many, more = (
        linear_probe.fit(X, LABELS, classes=CLASSES, l2=1e-3, steps=steps).weight
        for steps in (1, 2, 400, 500)
    )
    assert not np.allclose(one, two)
    assert not np.allclose(two, many)
    np.testing.assert_array_equal(many, more)


def test_units_constants_and_copies_of_features_do_not_matter():
    x = X[:, :8]
    expected = np.exp(Reference(x, LABELS, 0.01).log_probs(x))
    constants = np.full((N, 8), 0.1, np.float32) * 10.0 ** np.arange(8, dtype=np.float32)
    with_constants = np.concatenate([1e4 * x + 100, constants], axis=1)
    copies = np.concatenate([x, x], axis=1)  # two copies share the weight, at half the penalty
    for features, l2 in ((with_constants, 0.01), (copies, 0.02)):
        found = linear_probe.fit(features, LABELS, classes=CLASSES, l2=l2, tolerance=1e-5)
        np.testing.assert_allclose(linear_probe.probs(found, features), expected, atol=1e-3)


def test_a_feature_that_was_constant_in_training_is_ignored():
    x = X.copy()
    x[:, 8:] = 10.0 ** np.arange(-4, 4) / 3
    found = linear_probe.fit(x, LABELS, classes=CLASSES, l2=0.01)
    moved = x * np.where(np.arange(FEATURES) < 8, 1, 1.01).astype(np.float32)
    np.testing.assert_allclose(linear_probe.probs(found, moved), linear_probe.probs(found, x), atol=1e-3)


def test_more_features_than_examples_and_absent_classes_are_fine():
    x = np.random.default_rng(0).normal(size=(30, 50)).astype(np.float32)
    found = linear_probe.fit(x, LABELS[:30], classes=CLASSES + 2)
    p = np.asarray(linear_probe.probs(found, x))
    assert p.shape == (30, CLASSES + 2)
    assert np.all(np.isfinite(p))
    assert np.all(p[:, CLASSES:] < 0.1)


def test_fit_chooses_the_best_l2_on_the_last_fifth_of_each_class_and_refits_on_all():
    held_out = np.zeros(N, bool)
    for c in range(CLASSES):
        places = np.flatnonzero(c == LABELS)
        held_out[places[-(len(places) // 5) :]] = True

    def held_out_nll(l2):
        logp = Reference(X[~held_out], LABELS[~held_out], l2).log_probs(X[held_out])
        return -np.mean(logp[np.arange(len(logp)), LABELS[held_out]])

    best = min(linear_probe.GRID, key=held_out_nll)
    assert min(linear_probe.GRID) < best < max(linear_probe.GRID)
    found = linear_probe.fit(X, LABELS, classes=CLASSES, tolerance=1e-5)
    np.testing.assert_allclose(found.weight, Reference(X, LABELS, best).weight, atol=1e-3)


def test_probabilities_by_hand():
    probe = linear_probe.LinearProbe(jnp.eye(3), jnp.zeros(3), jnp.zeros(3), jnp.ones(3))
    x = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(linear_probe.probs(probe, x), scipy.special.softmax(x, axis=1), rtol=1e-6)


def test_the_same_data_gives_the_same_bits():
    first, second = (linear_probe.fit(X, LABELS, classes=CLASSES) for _ in range(2))
    chex.assert_trees_all_equal(first, second)


def test_half_precision_features_and_unsigned_labels_are_accepted():
    expected = accuracy(linear_probe.fit(X, LABELS, classes=CLASSES), X, LABELS)
    half = jnp.asarray(X, jnp.bfloat16)
    found = linear_probe.fit(half, LABELS.astype(np.uint8), classes=CLASSES)
    assert all(leaf.dtype == jnp.float32 for leaf in found)
    assert accuracy(found, half, LABELS) == pytest.approx(expected, abs=0.02)


@pytest.mark.slow
def test_raw_pixels_of_the_embedded_images_reach_85_percent():
    """The number that learned features have to beat."""
    data = fashion_mnist.load()
    train, test = (s.image.reshape(len(s.image), -1) / np.float32(255) for s in (data.train, data.test))
    found = linear_probe.fit(train, data.train.label, classes=10)
    assert 0.845 < accuracy(found, test, data.test.label) < 0.865


@pytest.mark.parametrize(
    ("x", "labels", "problem"),
    [
        (X[0], LABELS, r"features must be \[n, features\]"),
        (X[:, :0], LABELS, r"got \(300, 0\)"),
        (X[:0], LABELS[:0], r"got \(0, 16\)"),
        (X, LABELS[:-1], r"labels must be \[300\], one per row, got \[299\]"),
        (X, LABELS[:, None], r"got \[300, 1\]"),
        (X, LABELS.astype(np.float32), "labels must be integers, got float32"),
        (X, LABELS + 1, "labels must be 0 to 3, got 1 to 4"),
        (X, LABELS - 1, "labels must be 0 to 3, got -1 to 2"),
        (np.where(X > 1, np.nan, X), LABELS, "features must be finite"),
    ],
)
def test_wrong_data_is_refused(monkeypatch, x, labels, problem):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of tests
    for call in (
        lambda: linear_probe.fit(x, labels, classes=CLASSES),
        lambda: linear_probe.fit(x, labels, classes=CLASSES, l2=1.0),
    ):
        with pytest.raises(ValueError, match=problem):
            call()


@pytest.mark.parametrize("l2", [0.0, -1.0, float("nan")])
def test_l2_must_be_positive(l2):
    with pytest.raises(ValueError, match="l2 must be"):
        linear_probe.fit(X, LABELS, classes=CLASSES, l2=l2)
    with pytest.raises(ValueError, match="l2 must be"):
        linear_probe.fit(X, LABELS, classes=CLASSES, l2=(1.0, l2))


def test_choosing_l2_needs_candidates_and_examples():
    with pytest.raises(ValueError, match="l2 must be one or more"):
        linear_probe.fit(X, LABELS, classes=CLASSES, l2=())
    with pytest.raises(ValueError, match="no class has the 5 examples"):
        linear_probe.fit(X[:4], LABELS[:4], classes=CLASSES)


def test_a_probe_on_some_examples_is_that_of_them_alone():
    some = np.random.default_rng(5).random(N) < 0.4
    whole = linear_probe.fit(X, LABELS, classes=CLASSES, included=some, tolerance=1e-5)
    alone = linear_probe.fit(X[some], LABELS[some], classes=CLASSES, tolerance=1e-5)
    np.testing.assert_allclose(linear_probe.probs(whole, X), linear_probe.probs(alone, X), atol=1e-4)
    # What is left out does not matter, whatever it is.
    other = np.where(some[:, None], X, 100.0 * X)
    again = linear_probe.fit(other, np.where(some, LABELS, 0), classes=CLASSES, included=some, tolerance=1e-5)
    np.testing.assert_allclose(again.weight, whole.weight, atol=1e-4)


@pytest.mark.parametrize("included", [np.zeros(N, bool), np.ones(N - 1, bool)])
def test_who_is_included_must_be_known(included):
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match="included"):
        linear_probe.fit(X, LABELS, classes=CLASSES, l2=0.1, included=included)
