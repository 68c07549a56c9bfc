"""Nearest neighbours: against scikit-learn and plain numpy, blocks, ties, extremes, and what is refused."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import sklearn.neighbors

from byov_jax.evaluation import knn, metrics

CLASSES = 5
M, N, FEATURES = 211, 53, 12


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping Gaussian classes, at very different distances from the origin."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    centres = np.random.default_rng(99).normal(size=(CLASSES, FEATURES))
    x = (centres[labels] + rng.normal(size=(count, FEATURES))) * rng.lognormal(0, 2, (count, 1))
    return x.astype(np.float32), labels.astype(np.int32)


BANK, BANK_LABELS = examples(M, seed=0)
X, LABELS = examples(N, seed=1)


def cosines(bank: np.ndarray, x: np.ndarray) -> np.ndarray:
    bank, x = bank.astype(np.float64), x.astype(np.float64)
    return (x @ bank.T) / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(bank, axis=1)[None]


@pytest.mark.parametrize("temperature", [0.07, 0.5])
@pytest.mark.parametrize("k", [20, M])
def test_probabilities_are_scikit_learns(k, temperature):
    def weights(distance):
        return np.exp((1 - distance) / temperature)

    reference = sklearn.neighbors.KNeighborsClassifier(k, weights=weights, metric="cosine", algorithm="brute")
    reference.fit(BANK.astype(np.float64), BANK_LABELS)
    found = knn.probs(BANK, BANK_LABELS, X, classes=CLASSES, k=k, temperature=temperature)
    np.testing.assert_allclose(found, reference.predict_proba(X.astype(np.float64)), atol=1e-5)


def test_neighbours_are_those_of_an_exhaustive_search():
    near = knn.nearest(BANK, X, k=20)
    similarity = cosines(BANK, X)
    index = np.argsort(-similarity, axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(near.row, index)
    np.testing.assert_allclose(near.similarity, np.take_along_axis(similarity, index, axis=1), atol=1e-6)


@pytest.mark.parametrize("block", [7, 100])
def test_blocks_do_not_change_the_result(block):
    whole, blocked = (knn.nearest(BANK, X, k=20, block=size) for size in (4096, block))
    np.testing.assert_array_equal(blocked.row, whole.row)
    np.testing.assert_allclose(blocked.similarity, whole.similarity, atol=1e-6)


@pytest.mark.parametrize("block", [7, 100, 4096])
def test_ties_go_to_the_lower_row(block):
    # Entries of -1, 0 or 1 in rows of one length: the similarities are few, and exact.
    rng = np.random.default_rng(0)
    bank, x = (
        rng.permuted(np.repeat([[1, 1, -1, -1] + 8 * [0]], count, axis=0), axis=1).astype(np.float32)
        for count in (M, N)
    )
    near = knn.nearest(bank, x, k=20, block=block)
    products = x @ bank.T
    np.testing.assert_array_equal(near.row, np.argsort(-products, axis=1, kind="stable")[:, :20])
    np.testing.assert_array_equal(near.similarity, -np.sort(-products, axis=1)[:, :20] / 4)


def test_one_search_serves_every_smaller_k_and_temperature():
    near = knn.nearest(BANK, X, k=M)
    for k, temperature in ((20, 0.07), (20, 0.1), (M, 0.1)):
        voted = knn.vote(near, BANK_LABELS, classes=CLASSES, k=k, temperature=temperature)
        direct = knn.probs(BANK, BANK_LABELS, X, classes=CLASSES, k=k, temperature=temperature)
        np.testing.assert_allclose(voted, direct, atol=1e-6)


def test_votes_by_hand():
    near = knn.Neighbours(
        jnp.log(jnp.array([[4.0, 2.0, 1.0, 1.0]])) / 10, jnp.array([[3, 0, 2, 1]], jnp.int32)
    )
    labels = np.array([0, 0, 1, 2])
    for k, expected in ((1, [0, 0, 1, 0]), (3, [2 / 7, 1 / 7, 4 / 7, 0])):
        found = knn.vote(near, labels, classes=4, k=k, temperature=0.1)
        np.testing.assert_allclose(found, [expected], atol=1e-6)


def test_accuracy_is_far_above_chance():
    found = knn.probs(BANK, BANK_LABELS, X, classes=CLASSES)
    assert metrics.top_k(found, LABELS, 1) > 0.6  # a fifth is chance


def test_a_tiny_temperature_is_the_nearest_neighbour():
    nearest = BANK_LABELS[np.argmax(cosines(BANK, X), axis=1)]
    found = knn.probs(BANK, BANK_LABELS, X, classes=CLASSES, temperature=1e-7)
    np.testing.assert_allclose(found, np.eye(CLASSES)[nearest], atol=1e-5)


def test_the_length_of_a_row_does_not_matter():
    expected = knn.probs(BANK, BANK_LABELS, X, classes=CLASSES)
    for scale in (1e-30, 1e30):  # whose squares float32 cannot hold
        scaled = knn.probs(BANK * np.float32(scale), BANK_LABELS, X / np.float32(scale), classes=CLASSES)
        np.testing.assert_allclose(scaled, expected, atol=1e-4)


def test_a_row_of_zeros_is_as_far_from_all():
    bank, x = BANK.copy(), X.copy()
    bank[3] = x[0] = 0.0
    near = knn.nearest(bank, x, k=M)
    np.testing.assert_array_equal(near.similarity[0], 0.0)
    np.testing.assert_array_equal(near.row[0], np.arange(M))
    np.testing.assert_array_equal(near.similarity[near.row == 3], 0.0)
    counts = np.bincount(BANK_LABELS, minlength=CLASSES)
    found = knn.vote(near, BANK_LABELS, classes=CLASSES, k=M)
    np.testing.assert_allclose(found[0], counts / M, atol=1e-6)
    np.testing.assert_allclose(np.sum(found, axis=1), 1.0, atol=1e-5)


def test_absent_classes_have_no_probability():
    found = knn.probs(BANK, BANK_LABELS, X, classes=CLASSES + 2)
    np.testing.assert_array_equal(found[:, CLASSES:], 0.0)


def test_half_precision_features_and_unsigned_labels_are_accepted():
    bank, x = jnp.asarray(BANK, jnp.bfloat16), jnp.asarray(X, jnp.bfloat16)
    found = knn.probs(bank, BANK_LABELS.astype(np.uint8), x, classes=CLASSES)
    expected = knn.probs(np.float32(bank), BANK_LABELS, np.float32(x), classes=CLASSES)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_double_precision_stays_double():
    with jax.enable_x64(True):
        near = knn.nearest(BANK.astype(np.float64), X, k=20)
        assert near.similarity.dtype == jnp.float64
        similarity = -np.sort(-cosines(BANK, X), axis=1)[:, :20]
        np.testing.assert_allclose(near.similarity, similarity, atol=1e-14)


def test_it_can_be_traced():
    found = jax.eval_shape(lambda *data: knn.probs(*data, classes=CLASSES), BANK, BANK_LABELS, X)
    assert found.shape == (N, CLASSES)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"bank": BANK[:, None]}, r"bank must be \[n, features\]"),
        ({"features": X[:, :0]}, r"features must be \[n, features\] .*, got \(53, 0\)"),
        ({"features": X[:, :5]}, r"must have equal width, got \(211, 12\) and \(53, 5\)"),
        ({"bank": np.where(BANK > 1, np.nan, BANK)}, "bank must be finite"),
        ({"features": np.where(X > 1, np.inf, X)}, "features must be finite"),
        ({"bank_labels": BANK_LABELS[:-1]}, r"labels must be \[211\], one per row, got \[210\]"),
        ({"bank_labels": BANK_LABELS[:, None]}, r"got \[211, 1\]"),
        ({"bank_labels": BANK_LABELS + 1}, "labels must be 0 to 4, got 1 to 5"),
        ({"bank_labels": BANK_LABELS - 1}, "labels must be 0 to 4, got -1 to 3"),
        ({"bank_labels": BANK_LABELS.astype(float)}, "labels must be integers, got float64"),
        ({"k": 0}, "k=0; allowed: 1 to 211, the size of the bank"),
        ({"k": M + 1}, "k=212; allowed: 1 to 211, the size of the bank"),
        ({"block": 0}, "block=0; allowed: 1 or more"),
        ({"temperature": 0.0}, "temperature=0.0; allowed: positive numbers"),
        ({"temperature": float("nan")}, "temperature=nan"),
    ],
)
def test_wrong_arguments_are_refused(monkeypatch, bad, problem):
    good = {"bank": BANK, "bank_labels": BANK_LABELS, "features": X, "classes": CLASSES}
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of tests
    with pytest.raises(ValueError, match=problem):
        knn.probs(**good | bad)


def test_votes_need_enough_neighbours_and_labels():
    near = knn.nearest(BANK, X, k=20)
    with pytest.raises(ValueError, match="k=21; allowed: 1 to 20"):
        knn.vote(near, BANK_LABELS, classes=CLASSES, k=21)
    with pytest.raises(ValueError, match="there are 100 bank_labels, but a neighbour in row"):
        knn.vote(near, BANK_LABELS[:100], classes=CLASSES)
