"""How many processes feed a training where the config leaves it open."""

import pytest

from byov_jax.training import feed


@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (2, 0), (4, 0), (6, 3), (96, 48)])
def test_few_cores_are_left_to_threads(cores, workers):
    assert feed.default_workers(cores) == workers
