"""Sums of float32 numbers keep their digits, also when compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from byov_jax.evaluation.metrics import compensated_sum

N = 100_000
TENTH = np.float32(0.1)
EXACT = N * float(TENTH)


def test_compiled_steps_keep_what_rounding_takes():
    @jax.jit
    def steps():
        one = compensated_sum.Sum(jnp.asarray(TENTH), jnp.zeros(()))
        carry = (compensated_sum.zeros(), jnp.zeros(()))
        return jax.lax.fori_loop(0, N, lambda _, c: (compensated_sum.add(c[0], one), c[1] + TENTH), carry)

    careful, plain = steps()
    assert abs(float(plain) - EXACT) > 1e-5 * EXACT  # what the compensation is for
    assert abs(float(careful.value) - EXACT) < 1e-7 * EXACT
    assert abs(float(careful.high) + float(careful.low) - EXACT) < 1e-12 * EXACT


@pytest.mark.parametrize("compiled", [True, False])
def test_totals_and_groups_of_equal_numbers_do_not_drift(compiled):
    def both(x):
        return compensated_sum.total(x), compensated_sum.segment_sum(x, jnp.arange(N) % 2, 2)

    total, halves = (jax.jit(both) if compiled else both)(jnp.full(N, TENTH))
    assert abs(float(total.value) - EXACT) < 1e-7 * EXACT
    np.testing.assert_allclose(halves.value, [EXACT / 2, EXACT / 2], rtol=1e-7)


def test_random_numbers_of_both_signs():
    x = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
    group = np.random.default_rng(1).integers(0, 3, N)
    expected = np.stack([x[group == g].sum(axis=0, dtype=np.float64) for g in range(3)])
    np.testing.assert_allclose(
        compensated_sum.segment_sum(jnp.asarray(x), jnp.asarray(group), 3).value, expected, rtol=1e-6
    )
    np.testing.assert_allclose(compensated_sum.total(jnp.asarray(x)).value, expected.sum(axis=0), rtol=1e-6)


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f))], ids=["grad", "jit"])
def test_the_gradient_is_that_of_a_plain_sum(transform):
    x, group, weight = jnp.linspace(-1, 1, 10_000), jnp.arange(10_000) % 3, jnp.array([1.0, 2.0, 5.0])

    def total(x):
        return compensated_sum.total(jnp.sin(x)).value ** 2

    def grouped(x):
        return jnp.sum(weight * compensated_sum.segment_sum(jnp.sin(x), group, 3).value)

    s, cos = float(compensated_sum.total(jnp.sin(x)).value), np.cos(x)
    np.testing.assert_allclose(transform(total)(x), 2 * s * cos, atol=1e-6)
    np.testing.assert_allclose(transform(grouped)(x), weight[group] * cos, rtol=1e-6)
    # Of the gradient's own sum: d/dx_i of 2 s sum_j cos x_j.
    expected = 2 * cos * np.sum(cos) - 2 * s * np.sin(x)
    np.testing.assert_allclose(
        transform(lambda x: jnp.sum(jax.grad(total)(x)))(x), expected, rtol=1e-4, atol=1e-3
    )
