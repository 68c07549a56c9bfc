"""Subsets of the labels: their size in each class, nesting, seeds, and what is refused."""

import itertools

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from byov_jax.evaluation.linear_probe import stratified_subset

CLASSES = 7
SIZES = (1000, 333, 150, 49, 5, 1, 0)
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(CLASSES), SIZES))
FRACTIONS = (0.001, 0.01, 0.05, 0.1, 0.29, 0.5, 0.99, 1.0)


def chosen(fraction: float, seed: int = 0, labels_: np.ndarray = LABELS) -> np.ndarray:
    return stratified_subset(labels_, fraction, classes=CLASSES, seed=seed)


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_every_class_is_represented_in_proportion(fraction):
    indices = chosen(fraction)
    assert np.all(np.diff(indices) > 0)  # sorted, none twice
    found = np.bincount(LABELS[indices], minlength=CLASSES)
    expected = [max(round(fraction * size), 1) if size else 0 for size in SIZES]
    np.testing.assert_array_equal(found, expected)


def test_one_and_ten_percent_of_a_balanced_set():
    balanced = np.tile(np.arange(10), 1000)
    one, ten = (stratified_subset(balanced, fraction, classes=10, seed=3) for fraction in (0.01, 0.1))
    assert (len(one), len(ten)) == (100, 1000)
    np.testing.assert_array_equal(np.bincount(balanced[one]), 10)


@pytest.mark.parametrize("seed", range(20))
def test_smaller_subsets_are_contained_in_larger_ones(seed):
    subsets = [set(chosen(fraction, seed)) for fraction in FRACTIONS]
    assert all(small <= large for small, large in itertools.pairwise(subsets))
    assert subsets[-1] == set(range(len(LABELS)))


def test_the_seed_decides():
    np.testing.assert_array_equal(chosen(0.1, seed=1), chosen(0.1, seed=1))
    shared = np.intersect1d(chosen(0.1, seed=1), chosen(0.1, seed=2))
    assert len(shared) < 0.3 * len(chosen(0.1))  # a tenth is expected


def test_the_choice_is_uniform():
    rounds = 500
    counts = np.zeros(49)
    places = np.flatnonzero(LABELS == 3)
    for seed in range(rounds):
        counts += np.isin(places, chosen(0.2, seed))
    probability = 10 / 49
    error = np.sqrt(rounds * probability * (1 - probability))
    assert np.max(np.abs(counts - rounds * probability)) < 4.5 * error


def test_other_classes_do_not_change_the_choice_within_a_class():
    kept = np.flatnonzero(LABELS != 0)
    before, after = chosen(0.3), chosen(0.3, labels_=LABELS[kept])
    np.testing.assert_array_equal(before[LABELS[before] != 0], kept[after])


def test_any_array_of_integers_is_accepted():
    for other in (LABELS.astype(np.uint8), jnp.asarray(LABELS)):
        np.testing.assert_array_equal(stratified_subset(other, 0.1, classes=CLASSES), chosen(0.1))


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"labels": LABELS[None]}, r"labels must be \[1538\], one per row, got \[1, 1538\]"),
        ({"labels": LABELS.astype(np.float32)}, "labels must be integers, got float32"),
        ({"labels": LABELS[:0]}, "labels must not be empty"),
        ({"labels": LABELS + 2}, "labels must be 0 to 6, got 2 to 7"),
        ({"labels": LABELS - 1}, "got -1 to 4"),
        ({"classes": 5}, "labels must be 0 to 4, got 0 to 5"),
        ({"fraction": 0.0}, r"fraction=0.0; allowed: above 0, at most 1"),
        ({"fraction": -0.1}, "fraction=-0.1"),
        ({"fraction": 10}, "fraction=10"),
        ({"fraction": float("nan")}, "fraction=nan"),
        ({"seed": -1}, "seed=-1; allowed: 0 or more"),
    ],
)
def test_wrong_arguments_are_refused(monkeypatch, bad, problem):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of tests
    with pytest.raises(ValueError, match=problem):
        stratified_subset(**{"labels": LABELS, "fraction": 0.1, "classes": CLASSES, "seed": 0} | bad)
