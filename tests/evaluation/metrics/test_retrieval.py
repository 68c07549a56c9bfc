"""R@1, R-AUROC and the crop test: loops and scikit-learn, ties, blocks, masks, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

from byov_jax.evaluation import metrics
from byov_jax.evaluation.metrics import retrieval

N, FEATURES, CLASSES = 60, 6, 4
BY_NEIGHBOURS = {
    "recall_at_1": lambda x, y, u, **where: metrics.recall_at_1(x, y, **where),
    "r_auroc": metrics.r_auroc,
}


def case(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features with ties and exact cosines, or with duplicates; labels, uncertainties and a mask."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, N).astype(np.int32)
    if seed % 2:
        # Entries of -1, 0 or 1 in rows of one length: the cosines are few, and exact.
        x = rng.permuted(np.tile([1, 1, -1, -1, 0, 0], (N, 1)), axis=1).astype(np.float32)
    else:
        centres = rng.normal(size=(CLASSES, FEATURES))
        x = (centres[labels] + rng.normal(size=(N, FEATURES))) * rng.lognormal(0, 2, (N, 1))
        x = x.astype(np.float32)
        copy = rng.permutation(N)[:20]
        x[copy[:10]], labels[copy[:5]] = x[copy[10:]], labels[copy[10:15]]
    u = np.round(rng.normal(size=N) * 4) / 4 if seed % 3 else rng.normal(size=N)
    return x, labels, u.astype(np.float32), rng.random(N) < 0.7


CASES = [case(seed) for seed in range(40)]


def neighbours(x: np.ndarray, counted: np.ndarray) -> list[int]:
    """Search by loops in float64; the first of equals wins."""
    x = x.astype(np.float64)
    found = []
    for i in range(len(x)):
        best, cosine = 0, -np.inf
        for j in range(len(x)):
            if counted[j] and j != i:
                new = np.round(x[i] @ x[j] / np.sqrt((x[i] @ x[i]) * (x[j] @ x[j])), 9)
                if new > cosine:
                    best, cosine = j, new
        found.append(best)
    return found


def reference(x, labels, u, counted) -> tuple[float, float]:
    correct = (labels[neighbours(x, counted)] == labels)[counted]
    area = sklearn.metrics.roc_auc_score(correct, -u[counted]) if len(set(correct)) == 2 else np.nan
    return np.mean(correct), area


def test_they_are_those_of_loops_and_scikit_learn():
    expected = np.array([reference(x, y, u, np.ones(N, bool)) for x, y, u, _ in CASES])
    masked = np.array([reference(*one) for one in CASES])
    assert np.std(expected, axis=0).min() > 0.03
    found = [(metrics.recall_at_1(x, y), metrics.r_auroc(x, y, u)) for x, y, u, _ in CASES]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    found = [
        (metrics.recall_at_1(x, y, where=kept), metrics.r_auroc(x, y, u, where=kept))
        for x, y, u, kept in CASES
    ]
    np.testing.assert_allclose(found, masked, rtol=0, atol=1e-6)


def test_many_at_once_inside_jit():
    x, y, u, kept = map(np.stack, zip(*CASES, strict=True))
    for metric in BY_NEIGHBOURS.values():
        together = jax.jit(jax.vmap(lambda x, y, u, kept, metric=metric: metric(x, y, u, where=kept)))
        one_by_one = [metric(*one, where=mask) for *one, mask in CASES]
        np.testing.assert_allclose(together(x, y, u, kept), one_by_one, rtol=0, atol=1e-6)


@pytest.mark.parametrize("block", [1, 7, 59, 60, 61])
def test_blocks_do_not_change_the_neighbour(block):
    for x, _, _, kept in CASES[:6]:
        for counted in (np.ones(N, bool), kept):
            found = retrieval.nearest_other(x, counted, block=block)
            np.testing.assert_array_equal(found, neighbours(x, counted))


def test_more_rows_than_a_block():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2500, 8)).astype(np.float32)
    labels, u = (x[:, 0] > 0).astype(np.int32), rng.normal(size=2500).astype(np.float32)
    direction = x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    cosine = direction @ direction.T
    np.fill_diagonal(cosine, -np.inf)
    correct = labels[np.argmax(cosine, axis=1)] == labels
    assert metrics.recall_at_1(x, labels) == pytest.approx(np.mean(correct), abs=1e-6)
    area = sklearn.metrics.roc_auc_score(correct, -u)
    assert metrics.r_auroc(x, labels, u) == pytest.approx(area, abs=1e-6)


def test_values_by_hand():
    """Images 0 and 1 are duplicates with different labels; the others are right."""
    x = np.array([[1, 0], [2, 0], [1, 1], [1, 1.5], [-1, 0.1]], np.float32)
    labels = np.array([0, 1, 2, 2, 2])
    assert metrics.recall_at_1(x, labels) == pytest.approx(3 / 5)
    for u, area in (([5, 5, 1, 1, 1], 1), ([0, 0, 1, 1, 1], 0), ([1] * 5, 0.5), ([2, 0, 1, 1, 3], 2 / 6)):
        assert metrics.r_auroc(x, labels, np.float32(u)) == pytest.approx(area)


def test_of_equal_neighbours_the_lower_index_is_taken():
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(retrieval.nearest_other(x, np.ones(4, bool)), [1, 0, 0, 0])
    kept = np.array([False, True, True, True])
    np.testing.assert_array_equal(retrieval.nearest_other(x, kept)[1:], [2, 1, 1])


@pytest.mark.parametrize("scale", [2.0**-120, 2.0**120])
def test_the_length_of_a_row_does_not_matter(scale):
    """Also where float32 cannot hold its square."""
    x, y, u, _ = CASES[1]
    scaled = np.where(np.arange(N)[:, None] % 2, x, x * np.float32(scale))
    assert metrics.recall_at_1(scaled, y) == metrics.recall_at_1(x, y)
    assert metrics.r_auroc(scaled, y, u) == metrics.r_auroc(x, y, u)


def test_if_all_neighbours_are_right_or_all_wrong_there_is_no_area():
    x, _, u, _ = CASES[0]
    for labels, recall in ((np.zeros(N, np.int32), 1.0), (np.arange(N), 0.0)):
        assert metrics.recall_at_1(x, labels) == recall
        assert np.isnan(metrics.r_auroc(x, labels, u))


def test_rows_that_are_left_out_may_hold_anything():
    x, y, u, kept = CASES[2]
    other_x, other_y, other_u = x.copy(), y.copy(), u.copy()
    left_out = np.flatnonzero(~kept)
    other_x[left_out[:4]] = [[np.nan], [np.inf], [0.0], [1e-40]]
    other_y[left_out], other_u[left_out] = -1, np.nan
    for metric in BY_NEIGHBOURS.values():
        for call in (metric, jax.jit(metric)):
            assert call(other_x, other_y, other_u, where=kept) == metric(x, y, u, where=kept)
        gradient = jax.grad(metric)(jnp.asarray(other_x), other_y, other_u, where=kept)
        np.testing.assert_array_equal(gradient, np.zeros_like(x))


@pytest.mark.parametrize(
    ("argument", "row"), [(0, np.nan), (0, np.inf), (0, 0.0), (1, -1), (2, np.nan), (2, -np.inf)]
)
def test_what_is_refused_outside_gives_nan_inside_jit(argument, row):
    arguments = [array.copy() for array in CASES[0][:3]]
    arguments[argument][3] = row
    for name, metric in BY_NEIGHBOURS.items():
        if argument == 2 and name == "recall_at_1":
            continue
        with pytest.raises(ValueError, match=r"finite|zero|labels"):
            metric(*arguments)
        assert np.isnan(jax.jit(metric)(*arguments))
        assert np.isfinite(jax.jit(metric)(*arguments, where=np.arange(N) != 3))


@pytest.mark.parametrize("rows", [0, 1])
def test_an_image_alone_has_no_neighbour(rows):
    x, y, u, _ = CASES[0]
    kept = np.arange(N) < rows
    for metric in BY_NEIGHBOURS.values():
        with pytest.raises(ValueError, match=r"where is (False everywhere|True for one row only)"):
            metric(x, y, u, where=kept)
        assert np.isnan(jax.jit(metric)(x, y, u, where=kept))


X, Y, U, _ = CASES[0]
ZEROS = np.where(np.arange(N)[:, None] < 2, 0, X)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({0: X[:, None]}, r"features must be \[n, features\] with n above 1 .*, got \[60, 1, 6\]"),
        ({0: X[:1]}, r"features must be .* got \[1, 6\]"),
        ({0: X[:, :0]}, r"features must be .* got \[60, 0\]"),
        ({0: X.astype(int)}, "features must be floating-point numbers, got int64"),
        ({0: X * 1j}, "features must be floating-point numbers, got complex"),
        ({0: np.where(X > 1, np.nan, X)}, "features must be finite, got NaN or infinity"),
        ({0: X.astype(np.float64) * 1e300}, "features must be finite, got NaN or infinity"),
        ({0: ZEROS}, "2 of 60 rows of features are zero and have no cosine; leave them out with where"),
        ({0: ZEROS + 1e-40}, "2 of 60 rows of features are zero"),
        ({1: Y[:-1]}, r"labels must be \[60\], one per row, got \[59\]"),
        ({1: Y.astype(float)}, "labels must be integers, got float64"),
        ({1: Y - 1}, "labels must be 0 to 2147483647, got -1 to 2"),
        ({1: Y.astype(np.int64) + 2**32}, "labels must be 0 to 2147483647, got 4294967296"),
        ({2: U[:-1]}, r"uncertainty must be \[60\] floating-point numbers, one per image, got \[59\]"),
        ({2: U[:, None]}, r"uncertainty must be \[60\] .*, got \[60, 1\] of float32"),
        ({2: Y}, r"uncertainty must be \[60\] floating-point numbers.* of int32"),
        ({2: np.where(U > 1, np.inf, U)}, "uncertainty must be finite"),
    ],
)
def test_wrong_arguments_are_refused(bad, problem):
    arguments = [bad.get(i, array) for i, array in enumerate((X, Y, U))]
    with pytest.raises(ValueError, match=problem):
        metrics.r_auroc(*arguments)
    if 2 not in bad:
        with pytest.raises(ValueError, match=problem):
            metrics.recall_at_1(*arguments[:2])


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"where must be \[60\] booleans, got \[59\] of bool"):
        metrics.recall_at_1(X, Y, where=np.ones(59, bool))


def test_sixteen_and_sixty_four_bits():
    for x, y, u, _ in CASES[:4]:
        short = [jnp.asarray(array, jnp.bfloat16) for array in (x, u)]
        for name, metric in BY_NEIGHBOURS.items():
            found = metric(short[0], y.astype(np.uint8), short[1])
            assert found.dtype == jnp.float32, name
            assert found == metric(*(np.float32(short[0]), y, np.float32(short[1])))
            with jax.enable_x64(True):
                wide = metric(x.astype(np.float64), y.astype(np.int64), u.astype(np.float64))
                assert wide.dtype == jnp.float64
                np.testing.assert_allclose(wide, metric(x, y, u), rtol=0, atol=1e-6)


def test_labels_that_32_bits_would_wrap_give_nan():
    with jax.enable_x64(True):
        assert np.isnan(jax.jit(metrics.recall_at_1)(X, Y.astype(np.int64) + 2**32))


def test_one_program_per_shape():
    metrics.recall_at_1(X, Y)
    before = retrieval._recall_at_1._cache_size()
    for x, y, _, _ in CASES[:5]:
        metrics.recall_at_1(x, y)
    assert retrieval._recall_at_1._cache_size() == before


def test_the_crop_test_is_a_strict_share():
    u, of_crops = np.float32([1, 2, 3, 4]), np.float32([2, 2, 2, 5])
    assert metrics.crop_test(u, of_crops) == 0.5
    assert metrics.crop_test(u, u) == 0.0
    assert metrics.crop_test(u, u + 1) == 1.0
    rng = np.random.default_rng(0)
    u, of_crops = rng.integers(0, 5, (2, 20, 33)) / 4
    expected = np.mean(u < of_crops, axis=1)
    np.testing.assert_allclose(jax.jit(jax.vmap(metrics.crop_test))(u, of_crops), expected, atol=1e-6)
    found = metrics.crop_test(jnp.asarray(u[0], jnp.bfloat16), jnp.asarray(of_crops[0], jnp.bfloat16))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected[0], atol=1e-6)


@pytest.mark.parametrize(
    ("u", "of_crops", "problem"),
    [
        (U, U[:-1], r"uncertainty_of_crops must be \[60\] floating-point numbers, one per image, got \[59\]"),
        (U[:, None], U, r"uncertainty must be \[60\] .*, got \[60, 1\]"),
        (U[:0], U[:0], r"uncertainty must be \[n\] with n above 0, got \[0\]"),
        (Y, U, r"uncertainty must be \[60\] floating-point numbers.* of int32"),
        (U, np.where(U > 1, np.nan, U), "uncertainty_of_crops must be finite"),
    ],
)
def test_wrong_uncertainties_are_refused(u, of_crops, problem):
    with pytest.raises(ValueError, match=problem):
        metrics.crop_test(u, of_crops)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_uncertainty_that_is_not_finite_gives_nan_inside_jit(value):
    wrong = np.append(U[1:], np.float32(value))
    for pair in ((U, wrong), (wrong, U)):
        assert np.isnan(jax.jit(metrics.crop_test)(*pair))
