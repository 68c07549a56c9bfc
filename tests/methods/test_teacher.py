"""The teacher is an EMA of the student's mean and batch statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from byov_jax import networks
from byov_jax.methods import teacher

MEAN = {
    name: {"kernel": jnp.full(2, value)}
    for name, value in (("encoder", 1.0), ("projector", 2.0), ("predictor", 3.0))
}
STATS = {
    "batch_stats": {"projector": {"mean": jnp.full(2, 4.0)}, "predictor": {"mean": jnp.full(2, 5.0)}},
    "frozen": {"encoder": {"kernel": jnp.full(2, 0.1)}},
}
STUDENT = networks.Student(networks.MLP((2,)), networks.MLP((2,)), networks.MLP((2,)))
MOVED = jax.tree.map(lambda x: x + 1.0, MEAN)
MOVED_STATS = jax.tree.map(lambda x: x + 1.0, STATS)


def test_it_starts_as_a_copy_in_separate_buffers():
    start = teacher.init(STUDENT, MEAN, STATS)
    np.testing.assert_array_equal(start.params["encoder"]["kernel"], MEAN["encoder"]["kernel"])
    assert start.params["encoder"]["kernel"] is not MEAN["encoder"]["kernel"]


def test_it_never_contains_the_predictor():
    moved = teacher.update(teacher.init(STUDENT, MEAN, STATS), MOVED, MOVED_STATS, 0.5)
    assert set(moved.params) == {"encoder", "projector"}
    assert set(moved.stats["batch_stats"]) == {"projector"}


def test_it_averages_means_and_batch_statistics():
    moved = teacher.update(teacher.init(STUDENT, MEAN, STATS), MOVED, MOVED_STATS, 0.75)
    np.testing.assert_allclose(moved.params["encoder"]["kernel"], 1.25)
    np.testing.assert_allclose(moved.stats["batch_stats"]["projector"]["mean"], 4.25)


def test_it_takes_its_own_batch_statistics_if_an_objective_has_them():
    own = {"batch_stats": {"projector": {"mean": jnp.full(2, 9.0)}}, "frozen": {}}
    moved = teacher.update(teacher.init(STUDENT, MEAN, STATS), MOVED, MOVED_STATS, 0.75, own=own)
    np.testing.assert_array_equal(moved.stats["batch_stats"]["projector"]["mean"], 9.0)
    np.testing.assert_array_equal(moved.stats["frozen"]["encoder"]["kernel"], jnp.full(2, 0.1) + 1.0)


def test_frozen_collections_stay_bitwise():
    moved = teacher.update(teacher.init(STUDENT, MEAN, STATS), MOVED, STATS, 0.3)
    np.testing.assert_array_equal(
        moved.stats["frozen"]["encoder"]["kernel"], STATS["frozen"]["encoder"]["kernel"]
    )


@pytest.mark.parametrize(("tau", "expected"), [(1.0, MEAN), (0.0, MOVED)])
def test_tau_one_freezes_and_tau_zero_copies(tau, expected):
    moved = teacher.update(teacher.init(STUDENT, MEAN, STATS), MOVED, MOVED_STATS, tau)
    for part in ("encoder", "projector"):
        np.testing.assert_array_equal(moved.params[part]["kernel"], expected[part]["kernel"])


def test_a_network_that_names_no_parts_has_a_teacher_of_all():
    start = teacher.init(networks.MLP((2,)), MEAN, STATS)
    assert set(start.params) == {"encoder", "projector", "predictor"}


def test_other_collections_are_those_of_the_student():
    counters = {"counts": {"encoder": {"steps": jnp.int32(3)}}}
    start = teacher.init(STUDENT, MEAN, counters)
    moved = teacher.update(start, MOVED, {"counts": {"encoder": {"steps": jnp.int32(4)}}}, 0.5)
    assert moved.stats["counts"]["encoder"]["steps"] == 4


def test_methods_without_a_teacher_have_an_empty_one():
    empty = teacher.none()
    assert jax.tree.leaves(teacher.update(empty, MEAN, STATS, 0.5)) == []
