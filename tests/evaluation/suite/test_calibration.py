"""The images that an evaluation keeps to be looked at."""

import numpy as np
import pytest

from byov_jax.evaluation.suite.calibration import EXAMPLES, examples


def image_of(count):
    """Images whose value is their place."""
    return np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 2, 3, 1))


def test_the_most_certain_come_first_and_then_the_least():
    entropy = np.random.default_rng(0).permutation(100) / 100
    kept = examples(entropy, image_of(100))
    order = np.argsort(entropy)
    expected = [*order[:EXAMPLES], *order[::-1][:EXAMPLES]]
    assert kept["examples/index"].tolist() == expected
    assert kept["examples/certain"].tolist() == [True] * EXAMPLES + [False] * EXAMPLES
    assert kept["examples/image"].shape == (2 * EXAMPLES, 2, 3, 1)
    assert kept["examples/image"][:, 0, 0, 0].tolist() == expected


def test_of_equal_ones_the_earlier_are_kept():
    kept = examples(np.repeat([2.0, 1.0], 50), image_of(100))
    assert kept["examples/index"].tolist() == [*range(50, 50 + EXAMPLES), *range(EXAMPLES)]


@pytest.mark.parametrize(("count", "each"), [(1, 0), (7, 3), (30, EXAMPLES)])
def test_no_image_is_both(count, each):
    index = examples(np.zeros(count) + np.arange(count), image_of(count))["examples/index"]
    assert len(set(index.tolist())) == len(index) == 2 * each
