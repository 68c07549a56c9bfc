"""Quantiles of Student's t, against SciPy and against closed forms."""

import math

import pytest
from scipy import stats

from byov_jax.report import student_t


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 100, 1001])
@pytest.mark.parametrize("level", [0.0, 0.5, 0.9, 0.95, 0.999])
def test_quantiles_agree_with_scipy(level, degrees):
    expected = stats.t.ppf((1 + level) / 2, degrees)
    assert student_t.quantile(level, degrees) == pytest.approx(expected, rel=1e-10)


def test_quantiles_have_their_closed_forms():
    level = 0.8
    assert student_t.quantile(level, 1) == pytest.approx(math.tan(math.pi * level / 2))
    assert student_t.quantile(level, 2) == pytest.approx(level * math.sqrt(2 / (1 - level**2)))


@pytest.mark.parametrize(("level", "degrees"), [(0.95, 0), (1.0, 3), (-0.1, 3)])
def test_what_has_no_quantile_is_refused(level, degrees):
    with pytest.raises(ValueError, match="must be"):
        student_t.quantile(level, degrees)
