"""Formatting of numbers and lists."""

import math

import pytest

from byov_jax.report import formatting
from byov_jax.report.formatting import MINUS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formatting.percent(0.71234), "71.2%"),
        (formatting.fixed(-0.25, 2), f"{MINUS}0.25"),
        (formatting.fixed(-0.001, 1), "0.0"),
        (formatting.signed(2.831), "+2.83"),
        (formatting.signed(-0.4), f"{MINUS}0.40"),
        (formatting.signed(-0.0001), "0.00"),
        (formatting.signed(math.nan), "?"),
        (formatting.short(0.0067379), "0.00674"),
        (formatting.short(1.2e-7), f"1.2e{MINUS}7"),
        (formatting.tick(0.30000000000000004), "0.3"),
        (formatting.tick(-20.0), f"{MINUS}20"),
        (formatting.tick(5e-5), f"5e{MINUS}5"),
        (formatting.interval(1.1, 3.49, 1), "[1.1, 3.5]"),
        (formatting.change("1", "2"), "went from 1 to 2"),
        (formatting.change("1", "1"), "stayed at 1"),
        (formatting.listing([]), ""),
        (formatting.listing(["a"]), "a"),
        (formatting.listing(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_read_well(text, expected):
    assert text == expected
