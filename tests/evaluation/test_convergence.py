"""How many draws are enough: the size of the error and the plain answer."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from byov_jax.evaluation.convergence import convergence

K, N = 50, 200


def draws(spread=0.1, seed=0):
    """Two classes; the first has a probability that varies around .7 from draw to draw."""
    p = np.clip(0.7 + spread * np.random.default_rng(seed).uniform(-1, 1, (K, N)), 0, 1)
    return np.stack([p, 1 - p], axis=-1).astype(np.float32)


def test_the_error_of_the_mean_falls_as_one_over_root_k():
    found = convergence(jax.random.key(0), draws())
    spread = draws()[..., 0].std(0)
    expected = np.sqrt(np.mean(np.square(spread))) / np.sqrt(np.arange(1, K + 1))
    assert found.mean.shape == found.std.shape == (50, K)
    # Over 50 repeats and 200 images that share their resamples: a relative error of 1 / sqrt(2 * 50).
    assert_allclose(found.mean_error, expected, rtol=0.3)
    assert_allclose(found.mean_error[0], expected[0], rtol=0.1)


def test_one_draw_has_no_std_and_many_have_that_of_all():
    found = convergence(jax.random.key(0), draws())
    np.testing.assert_array_equal(found.std[:, 0], 0)
    final = draws()[..., 0].std(0)
    assert_allclose(found.std_error[0], np.sqrt(np.mean(np.square(final))), rtol=1e-5)
    assert_allclose(found.std[:, -1].mean(), final.mean(), rtol=0.05)
    assert_allclose(found.mean.mean(0)[-1], draws()[..., 0].mean(), atol=1e-3)


def test_the_smallest_number_of_draws_within_a_tolerance():
    found = convergence(jax.random.key(0), draws())
    for tolerance in (0.03, 0.02, 0.01):
        k = found.enough(tolerance)
        assert np.all(found.mean_error[k - 1 :] <= tolerance)
        assert k == 1 or found.mean_error[k - 2] > tolerance
    assert found.enough(1.0) == 1
    assert found.enough(1e-6) is None


def test_draws_that_agree_are_enough_at_once():
    found = convergence(jax.random.key(0), draws(spread=0.0))
    assert found.enough(1e-6) == 1
    assert_allclose(found.std_error, 0, atol=1e-7)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="draws"):
        convergence(jax.random.key(0), draws()[0])
    with pytest.raises(ValueError, match="tolerance=0"):
        convergence(jax.random.key(0), draws()).enough(0)
