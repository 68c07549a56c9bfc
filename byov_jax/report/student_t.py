"""Quantiles of Student's t distribution, for intervals over a few seeds."""

import math


def quantile(level: float, degrees: int) -> float:
    """The t with `P(|T| <= t) = level` for `degrees` degrees of freedom, 1 or more.

    With `t = sqrt(degrees) tan(angle)` the probability is a finite sum (Abramowitz and Stegun, 26.7.3 and
    26.7.4) that grows with the angle: bisection finds it to the last digits.
    """
    if degrees < 1:
        raise ValueError(f"degrees={degrees} must be at least 1")
    if not 0 <= level < 1:
        raise ValueError(f"level={level} must be in [0, 1)")
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if _probability(middle, degrees) < level:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _probability(angle: float, degrees: int) -> float:
    """`P(|T| <= sqrt(degrees) tan(angle))`."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for i in range(2 + odd, degrees, 2):  # cos^(i) from cos^(i-2)
        term *= (i - 1) / i * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
