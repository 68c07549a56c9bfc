"""Numbers as people read them."""

import math

import pytest

from byov_jax.report import words
from byov_jax.report.words import MINUS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.percent(0.71234), "71.2%"),
        (words.fixed(-0.25, 2), f"{MINUS}0.25"),
        (words.fixed(-0.001, 1), "0.0"),
        (words.signed(2.831), "+2.83"),
        (words.signed(-0.4), f"{MINUS}0.40"),
        (words.signed(-0.0001), "0.00"),
        (words.signed(math.nan), "?"),
        (words.short(0.0067379), "0.00674"),
        (words.short(1.2e-7), f"1.2e{MINUS}7"),
        (words.tick(0.30000000000000004), "0.3"),
        (words.tick(-20.0), f"{MINUS}20"),
        (words.tick(5e-5), f"5e{MINUS}5"),
        (words.interval(0.011, 0.0349, 1, 100), "[1.1, 3.5]"),
        (words.change("1", "2"), "went from 1 to 2"),
        (words.change("1", "1"), "stayed at 1"),
        (words.listing([]), ""),
        (words.listing(["a"]), "a"),
        (words.listing(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_read_well(text, expected):
    assert text == expected
