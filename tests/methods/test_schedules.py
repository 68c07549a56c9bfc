"""Schedules at known points."""

import numpy as np
import pytest

from byov_jax import schedules


def test_beta_annealing_golden_numbers():
    beta = schedules.cosine(0.0, 1.0, 100)
    values = [beta(step) for step in (0, 25, 50, 75, 100, 1000)]
    np.testing.assert_allclose(values, [0.0, 0.1464466, 0.5, 0.8535534, 1.0, 1.0], atol=1e-7)


def test_cosine_between_any_two_values():
    np.testing.assert_allclose([schedules.cosine(2.0, -1.0, 4)(step) for step in (0, 2, 4)], [2.0, 0.5, -1.0])


@pytest.mark.parametrize("base", [0.99, 0.996, 0.97])
def test_teacher_momentum_rises_to_exactly_one(base):
    tau = schedules.ema_cosine(base, 1000)
    np.testing.assert_allclose(tau(0), base, rtol=1e-6)
    expected = 1.0 - (1.0 - base) * (1.0 + np.cos(np.pi * 0.3)) / 2.0
    np.testing.assert_allclose(tau(300), expected, rtol=1e-6)
    assert tau(1000) == 1.0
    assert tau(5000) == 1.0


def test_warmup_cosine():
    rate = schedules.warmup_cosine(0.4, 10, 110)
    np.testing.assert_allclose(
        [rate(step) for step in (0, 5, 10, 60, 110)], [0.0, 0.2, 0.4, 0.2, 0.0], atol=1e-7
    )
    assert schedules.warmup_cosine(0.4, 0, 10)(0) == pytest.approx(0.4)


def test_ema_scaling_rule():
    assert schedules.scale_ema(0.99, 256 / 4096) == pytest.approx(0.99937205, abs=5e-9)
    assert schedules.scale_ema(schedules.scale_ema(0.9, 1 / 8), 8) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedules.cosine(0.0, 1.0, 0), "steps=0"),
        (lambda: schedules.ema_cosine(1.5, 10), r"base=1.5 must lie in \[0, 1\]"),
        (lambda: schedules.warmup_cosine(0.1, 10, 10), "warmup=10"),
        (lambda: schedules.scale_ema(-0.1, 2.0), "tau=-0.1"),
        (lambda: schedules.scale_ema(0.9, 0.0), "k=0.0"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
