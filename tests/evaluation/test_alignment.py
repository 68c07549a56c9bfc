"""Correlations and density of two models' predictive stds, against scipy and against known truths."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from byov_jax.evaluation import alignment, bootstrap

KEY = jax.random.key(0)
N = 120  # the same in most tests: each new shape compiles


def clouds() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(2, N))
    pairs = {
        "independent": (u, v),
        "correlated": (u, 0.9 * u + 0.4 * v),
        "opposed": (u, -5 * u + v),
        "nearly a line": (u, u + 0.05 * v),
        "stds": (0.1 * np.exp(u), 0.02 * np.exp(u / 2 + v)),
        "tiny": (1e-25 * u, 1e-25 * (u + v)),
        "far from zero": (1000 + u, -500 + u + v),
        "tied": (np.round(u), np.round(u + v)),
        "half zeros": (np.maximum(u, 0), np.maximum(u + v, 0)),
        "two values": (np.sign(u), np.sign(u + v)),
    }
    return {name: tuple(np.float32(values) for values in pair) for name, pair in pairs.items()}


CLOUDS = clouds()
PLANAR = [name for name in CLOUDS if name != "tiny"]  # the square of 1e-25 is no float32


@pytest.mark.parametrize("name", CLOUDS)
def test_coefficients_are_those_of_scipy(name):
    x, y = CLOUDS[name]
    exact = np.float64(x), np.float64(y)
    np.testing.assert_allclose(alignment.pearson(x, y), scipy.stats.pearsonr(*exact).statistic, atol=1e-6)
    np.testing.assert_allclose(alignment.spearman(x, y), scipy.stats.spearmanr(*exact).statistic, atol=1e-6)


@pytest.mark.parametrize("name", ["stds", "tied", "half zeros"])
def test_intervals_are_percentiles_over_resampled_pairs(name):
    x, y = CLOUDS[name]
    found = alignment.correlations(KEY, x, y, repeats=60, level=0.9)
    chosen = np.asarray(bootstrap.indices(KEY, N, 60))
    for interval, statistic in (
        (found.pearson, scipy.stats.pearsonr),
        (found.spearman, scipy.stats.spearmanr),
    ):
        replicates = [statistic(np.float64(x[i]), np.float64(y[i])).statistic for i in chosen]
        expected = [statistic(np.float64(x), np.float64(y)).statistic, *np.quantile(replicates, [0.05, 0.95])]
        np.testing.assert_allclose(interval, expected, atol=2e-6)


def test_intervals_cover_the_truth_of_a_bivariate_normal():
    datasets, n, repeats, level, rho = 600, 80, 200, 0.9, 0.6
    u, v = jax.random.normal(jax.random.key(1), (2, datasets, n))
    cover = jax.jit(jax.vmap(lambda key, x, y: alignment.correlations(key, x, y, repeats, level)))
    found = cover(jax.random.split(KEY, datasets), u, rho * u + np.sqrt(1 - rho**2) * v)
    # Four standard deviations of the frequency, and the bootstrap's own error, of the order of 1 / n.
    allowed = 4 * np.sqrt(level * (1 - level) / datasets) + 2 / n
    for interval, truth in ((found.pearson, rho), (found.spearman, 6 / np.pi * np.arcsin(rho / 2))):
        assert abs(np.mean((interval.low < truth) & (truth < interval.high)) - level) < allowed


def test_units_and_order_do_not_matter():
    x, y = CLOUDS["stds"]
    for coefficient in (alignment.pearson, alignment.spearman):
        expected = coefficient(x, y)
        np.testing.assert_allclose(coefficient(y, x), expected, atol=1e-6)
        np.testing.assert_allclose(coefficient(100 * x + 3, y / 7), expected, atol=1e-5)
        np.testing.assert_allclose(coefficient(x, -y), -expected, atol=1e-6)
        np.testing.assert_allclose(coefficient(x[::-1], y[::-1]), expected, atol=1e-6)
    np.testing.assert_array_equal(alignment.spearman(np.log(x), y**3), alignment.spearman(x, y))


def test_perfect_agreement_is_one_and_never_more():
    x, _ = CLOUDS["stds"]
    for values in (x, 3 * x, -x):
        for coefficient in (alignment.pearson, alignment.spearman):
            found = float(coefficient(x, values))
            assert abs(found) <= 1
            assert found == pytest.approx(np.sign(values[0]), abs=1e-6)


def test_a_constant_has_no_correlation():
    x, y = CLOUDS["stds"]
    for constant in (np.zeros_like(x), np.full_like(x, 0.1)):
        for coefficient in (alignment.pearson, alignment.spearman):
            assert np.isnan(coefficient(x, constant))
            assert np.isnan(coefficient(constant, y))
    found = alignment.correlations(KEY, np.full_like(x, 0.1), y, repeats=60)
    assert np.all(np.isnan(found))


@pytest.mark.parametrize("name", PLANAR)
def test_the_density_is_that_of_scipy(name):
    points = np.stack(CLOUDS[name], axis=1)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = (high - low) / 10
    places = np.random.default_rng(1).uniform(low - margin, high + margin, (500, 2)).astype(np.float32)
    reference = scipy.stats.gaussian_kde(np.float64(points.T))
    expected = reference(np.float64(places.T))
    np.testing.assert_allclose(
        alignment.gaussian_kde(points, places), expected, rtol=1e-5, atol=1e-9 * expected.max()
    )
    assert reference.silverman_factor() == pytest.approx(reference.scotts_factor())


@pytest.mark.parametrize("name", CLOUDS)
def test_the_fit_is_mean_and_covariance(name):
    points = np.stack(CLOUDS[name], axis=1)
    exact = np.float64(points)
    found = alignment.gaussian_fit(points)
    spread = exact.std(axis=0)
    error = 1e-5 * np.outer(spread, spread)
    assert np.all(np.abs(found.mean - exact.mean(axis=0)) <= 1e-6 * np.abs(exact).max(axis=0))
    assert np.all(np.abs(found.covariance - np.cov(exact.T)) <= np.maximum(error, np.finfo(np.float32).tiny))


@pytest.mark.parametrize("name", ["independent", "stds", "nearly a line"])
def test_align_returns_everything_behind_the_figure(name):
    x, y = CLOUDS[name]
    found = alignment.align(KEY, x, y, repeats=60)
    np.testing.assert_array_equal((found.x, found.y), (x, y))
    expected = alignment.correlations(KEY, x, y, repeats=60)
    chex.assert_trees_all_equal((found.pearson, found.spearman), tuple(expected))
    points = np.stack([x, y], axis=1)
    np.testing.assert_array_equal(found.mean, alignment.gaussian_fit(points).mean)
    np.testing.assert_array_equal(found.covariance, alignment.gaussian_fit(points).covariance)
    assert found.density.shape == (64, 64)
    assert found.grid_x[0] < x.min()
    assert found.grid_y[-1] > y.max()
    place = np.array([[found.grid_x[40], found.grid_y[20]]], np.float32)
    np.testing.assert_allclose(found.density[20, 40], alignment.gaussian_kde(points, place)[0], rtol=1e-5)


def test_the_density_of_a_figure_integrates_to_one():
    x, y = CLOUDS["correlated"]
    found = alignment.align(KEY, x, y, repeats=60)
    total = np.trapezoid(np.trapezoid(found.density, found.grid_x, axis=1), found.grid_y)
    # Beyond three widths a kernel has 0.0027 of its mass in each direction, and few points are at the edge.
    assert 1 - 0.0027 < total < 1 + 1e-4


def test_a_figure_depends_on_its_key_alone():
    x, y = CLOUDS["stds"]
    first, second = (alignment.align(KEY, x, y, repeats=60) for _ in range(2))
    chex.assert_trees_all_equal(first, second)
    other = alignment.align(jax.random.key(1), x, y, repeats=60)
    assert other.pearson.value == first.pearson.value
    assert other.pearson.low != first.pearson.low


LINES = {
    "one point": (np.full(N, 0.1), np.full(N, 0.7)),
    "x is constant": (np.full(N, 0.1), np.linspace(0, 1, N)),
    "y is constant": (np.linspace(0, 1, N), np.full(N, 0.1)),
    "y follows x": (np.linspace(0, 1, N), 0.3 - 7 * np.linspace(0, 1, N)),
    "two points": (np.array([0.0, 1.0]), np.array([0.0, 2.0])),
}


@pytest.mark.parametrize("name", LINES)
def test_points_on_a_line_have_no_density(name):
    x, y = (np.float32(values) for values in LINES[name])
    with pytest.raises(ValueError, match="points lie on a line"):
        alignment.align(KEY, x, y, repeats=60)
    with pytest.raises(ValueError, match="points lie on a line"):
        alignment.gaussian_kde(np.stack([x, y], axis=1), np.zeros((1, 2)))


def test_half_precision_and_whole_numbers_are_accepted():
    x, y = CLOUDS["tied"]
    expected = alignment.spearman(x, y)
    for kind in (jnp.bfloat16, jnp.int32):
        found = alignment.spearman(jnp.asarray(x, kind), jnp.asarray(y, kind))
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(found, expected)


def test_double_precision_is_kept():
    x, y = (np.float64(values) for values in CLOUDS["tied"])
    with jax.enable_x64(True):
        exact = scipy.stats.spearmanr(x, y).statistic
        np.testing.assert_allclose(alignment.spearman(x, y), exact, rtol=1e-14)
        for kind in (jnp.float32, jnp.float64):
            values = jax.ShapeDtypeStruct((N,), kind)
            found = jax.eval_shape(lambda x, y: alignment.align(KEY, x, y, repeats=60), values, values)
            assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(kind)}


@pytest.mark.parametrize(
    ("x", "y", "problem"),
    [
        (np.ones(3), np.ones(4), r"got \(3,\) and \(4,\)"),
        (np.ones((3, 1)), np.ones((3, 1)), r"got \(3, 1\) and \(3, 1\)"),
        (np.ones(1), np.ones(1), "n above 1"),
        (np.array([0.0, np.nan]), np.ones(2), "x must be finite"),
        (np.ones(2), np.array([0.0, np.inf]), "y must be finite"),
    ],
)
def test_wrong_data_is_refused(x, y, problem):
    for call in (
        alignment.pearson,
        alignment.spearman,
        lambda x, y: alignment.correlations(KEY, x, y),
        lambda x, y: alignment.align(KEY, x, y),
    ):
        with pytest.raises(ValueError, match=problem):
            call(x, y)


def test_wrong_arguments_are_refused():
    x, y = CLOUDS["stds"]
    with pytest.raises(ValueError, match="grid must be at least 2, got 1"):
        alignment.align(KEY, x, y, grid=1)
    with pytest.raises(ValueError, match="repeats=0"):
        alignment.align(KEY, x, y, repeats=0)
    with pytest.raises(ValueError, match="level must be above 0 and below 1, got 95"):
        alignment.align(KEY, x, y, repeats=60, level=95)
    with pytest.raises(ValueError, match="level must be above 0 and below 1, got 1"):
        alignment.align(KEY, x, y, repeats=60, level=1)
    with pytest.raises(ValueError, match=r"points must be \[n, 2\] with n above 0, got \(120,\)"):
        alignment.gaussian_kde(x, np.ones((1, 2)))
    with pytest.raises(ValueError, match=r"queries must be \[n, 2\] with n above 0, got \(1, 3\)"):
        alignment.gaussian_kde(np.stack([x, y], axis=1), np.ones((1, 3)))
    with pytest.raises(ValueError, match="queries must be finite"):
        alignment.gaussian_kde(np.stack([x, y], axis=1), np.full((1, 2), np.nan))
