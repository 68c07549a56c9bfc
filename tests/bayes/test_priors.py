"""The three priors, their moments and the variance recursion."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from byov_jax import posterior, priors
from byov_jax.bayes.moments import ema, ema_variance

MEAN = {
    "encoder": {"w": jnp.array([1.0, 2.0])},
    "projector": {"w": jnp.array([3.0])},
    "predictor": {"w": jnp.array([4.0])},
}
TEACHER = {"encoder": {"w": jnp.array([0.5, 0.5])}, "projector": {"w": jnp.array([0.25])}}
TEACHER_PRIORS = [priors.teacher_mean, priors.teacher_moments]


def test_ema_variance_reference_values():
    m = v = jnp.zeros(())
    means, variances = [], []
    for x in (1.0, 2.0, 4.0):
        v = ema_variance(v, m, x, 0.9)
        m = ema(m, x, 0.9)
        means.append(m)
        variances.append(v)
    np.testing.assert_allclose(means, [0.1, 0.29, 0.661], rtol=1e-6)
    np.testing.assert_allclose(variances, [0.09, 0.4059, 1.604079], rtol=1e-6)


def test_ema_variance_is_accurate_where_the_difference_of_moments_cancels():
    samples = np.random.default_rng(0).normal(1.0, 1e-5, 2000)
    m, v = jnp.float32(1.0), jnp.float32(0.0)
    first, second, differences = jnp.float32(1.0), jnp.float32(1.0), []
    for x in samples.astype(np.float32):
        v, m = ema_variance(v, m, x, 0.99), ema(m, x, 0.99)
        first, second = ema(first, x, 0.99), ema(second, x * x, 0.99)
        differences.append(float(second - first**2))
    assert np.mean(np.array(differences) <= 0.0) > 0.3
    np.testing.assert_allclose(v, 1e-10, rtol=0.5)


@pytest.mark.parametrize(("tau", "expected"), [(1.0, "old"), (0.0, "new")])
def test_ema_at_its_ends_is_exact(tau, expected):
    old, new = jnp.array([0.1, -1.3e-5]), jnp.array([0.7, 3.3])
    np.testing.assert_array_equal(ema(old, new, tau), {"old": old, "new": new}[expected])


def test_the_standard_prior_is_the_unit_gaussian_without_state():
    prior = priors.standard()
    q = posterior.init(MEAN)
    state = prior.init(q, TEACHER)
    assert jax.tree.leaves(state) == []
    assert prior.moments(state, TEACHER) == (0.0, 0.0)
    assert prior.update(state, TEACHER, MEAN, 0.5) == state


@pytest.mark.parametrize("make", TEACHER_PRIORS)
def test_the_prior_averages_the_predictor_itself(make):
    prior = make()
    state = prior.init(posterior.init(MEAN), TEACHER)
    assert set(state.mean) == {"predictor"}
    moved = jax.tree.map(lambda x: x + 1.0, MEAN)
    state = prior.update(state, TEACHER, moved, 0.75)
    np.testing.assert_allclose(state.mean["predictor"]["w"], [0.75 * 4.0 + 0.25 * 5.0])


@pytest.mark.parametrize("make", TEACHER_PRIORS)
def test_the_prior_mean_is_the_teacher_where_it_has_the_part(make):
    prior = make()
    state = prior.init(posterior.init(MEAN), TEACHER)
    mean, _ = prior.moments(state, TEACHER)
    assert mean["encoder"]["w"] is not MEAN["encoder"]["w"]
    np.testing.assert_array_equal(mean["encoder"]["w"], TEACHER["encoder"]["w"])
    np.testing.assert_array_equal(mean["predictor"]["w"], MEAN["predictor"]["w"])


@pytest.mark.parametrize("make", TEACHER_PRIORS)
def test_without_a_teacher_the_prior_averages_everything(make):
    state = make().init(posterior.init(MEAN), {})
    assert set(state.mean) == set(MEAN)


def test_teacher_mean_has_unit_variance():
    prior = priors.teacher_mean()
    state = prior.init(posterior.init(MEAN), TEACHER)
    assert prior.moments(state, TEACHER)[1] == 0.0
    assert state.variance is None


def test_teacher_moments_follow_the_recursion():
    prior = priors.teacher_moments()
    q = posterior.init(MEAN)
    state = prior.init(q, TEACHER)
    _, log_var = prior.moments(state, TEACHER)
    np.testing.assert_allclose(log_var["encoder"]["w"], -10.0, rtol=1e-6)

    state = prior.update(state, TEACHER, MEAN, 0.9)
    expected = 0.9 * (np.exp(-10.0) + 0.1 * (np.array([1.0, 2.0]) - 0.5) ** 2)
    np.testing.assert_allclose(state.variance["encoder"]["w"], expected, rtol=1e-6)
    np.testing.assert_allclose(state.variance["predictor"]["w"], 0.9 * np.exp(-10.0), rtol=1e-6)


def test_the_floor_bounds_the_prior_variance_but_not_its_moving_average():
    prior = priors.teacher_moments(floor=1e-3)
    state = prior.init(posterior.init(MEAN), TEACHER)
    _, log_var = prior.moments(state, TEACHER)
    np.testing.assert_allclose(log_var["projector"]["w"], np.log(1e-3), rtol=1e-6)
    np.testing.assert_allclose(state.variance["projector"]["w"], np.exp(-10.0), rtol=1e-6)
    with pytest.raises(ValueError, match="floor=0"):
        priors.teacher_moments(floor=0)


def test_point_estimates_have_no_prior_variance():
    state = priors.teacher_moments().init(posterior.init(MEAN, where="encoder"), TEACHER)
    assert state.variance["predictor"]["w"] is None
    state = priors.teacher_moments().update(state, TEACHER, MEAN, 0.9)
    assert state.variance["predictor"]["w"] is None


@pytest.mark.parametrize("make", TEACHER_PRIORS)
def test_no_gradient_reaches_the_prior(make):
    prior = make()
    q = posterior.init(MEAN)
    state = prior.init(q, TEACHER)

    def kl(state, teacher):
        return posterior.kl(q, *prior.moments(state, teacher))

    gradients = jax.grad(kl, argnums=(0, 1))(state, TEACHER)
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("moments", [{"mean": math.nan}, {"mean": {"": math.inf}}, {"std": {"": 0.0}}])
def test_moments_that_are_no_gaussian_are_refused(moments):
    with pytest.raises(ValueError, match=r"prior_(mean|std)=.* must be"):
        priors.gaussian(**moments)


def test_a_gaussian_has_moments_by_path():
    """The first pattern that matches counts; the KL is that to the same prior as trees."""
    prior = priors.gaussian({"predictor": 0.5, "": 0.0}, {"encoder/w": 0.1, "encoder": 9.0, "": 2.0})
    q = posterior.init(MEAN, log_var=-3.0)
    means = {"encoder": 0.0, "projector": 0.0, "predictor": 0.5}
    stds = {"encoder": 0.1, "projector": 2.0, "predictor": 2.0}
    state = prior.init(q, TEACHER)
    found = posterior.kl_by_leaf(q, *prior.moments(state, TEACHER))
    for name, w in ((name, part["w"]) for name, part in MEAN.items()):
        variance = np.exp(-3.0) + np.square(w - means[name])
        terms = 2 * np.log(stds[name]) + 3.0 + variance / stds[name] ** 2 - 1.0
        np.testing.assert_allclose(found[f"{name}/w"], 0.5 * np.sum(terms), rtol=1e-5)
    assert prior.update(state, TEACHER, MEAN, 0.9) is state


def test_a_gaussian_of_numbers_is_the_same_as_by_one_pattern():
    q = posterior.init(MEAN)
    numbers, patterns = priors.gaussian(0.5, 2.0), priors.gaussian({"": 0.5}, {"": 2.0})
    kl = [posterior.kl(q, *prior.moments(prior.init(q, TEACHER), TEACHER)) for prior in (numbers, patterns)]
    np.testing.assert_allclose(kl[0], kl[1], rtol=1e-6)


def test_a_path_without_a_pattern_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"no pattern of std matches 'predictor/w': add \"\" for all others"):
        priors.gaussian(std={"encoder": 0.1, "projector": 0.1}).init(posterior.init(MEAN), TEACHER)
