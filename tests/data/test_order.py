"""Data order: a pure function of (seed, step), each image at most once an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byov_jax.data import order


def epoch_of(seed: int, epoch: int, size: int, batch: int) -> np.ndarray:
    steps = size // batch
    return np.concatenate([order.batch_indices(seed, epoch * steps + i, size, batch) for i in range(steps)])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_an_epoch_repeats_no_image_and_drops_only_the_remainder(data):
    size = data.draw(st.integers(1, 200))
    batch = data.draw(st.integers(1, size))
    indices = epoch_of(data.draw(st.integers(0, 2**64)), data.draw(st.integers(0, 5)), size, batch)
    assert len(indices) == size - size % batch
    assert len(np.unique(indices)) == len(indices)
    assert indices.min() >= 0
    assert indices.max() < size


def test_an_epoch_has_every_image_once_when_the_batch_divides_the_size():
    np.testing.assert_array_equal(np.sort(epoch_of(3, 2, 120, 8)), np.arange(120))


def test_epochs_and_seeds_differ():
    orders = [tuple(epoch_of(seed, epoch, 64, 16)) for seed in range(4) for epoch in range(4)]
    assert len(set(orders)) == 16


def test_the_dropped_images_change_from_epoch_to_epoch():
    seen = np.unique(np.concatenate([epoch_of(0, epoch, 100, 64) for epoch in range(20)]))
    np.testing.assert_array_equal(seen, np.arange(100))


def test_steps_asked_in_any_order_give_the_same_batches():
    forward = {step: order.batch_indices(7, step, 100, 32).copy() for step in range(12)}
    for step in (11, 0, 5, 5, 3, 10, 1):
        order.batch_indices(8, 4 * step, 100, 32)  # another run in between
        np.testing.assert_array_equal(order.batch_indices(7, step, 100, 32), forward[step])


def test_the_order_is_the_same_on_every_machine_and_numpy():
    assert order.batch_indices(1, 0, 10, 5).tolist() == [0, 5, 7, 4, 8]
    assert order.batch_indices(2**40, 3, 10, 5).tolist() == [6, 5, 0, 9, 4]


def test_the_batch_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="read-only"):
        order.batch_indices(0, 0, 10, 5)[0] = 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((0, 0, 10, 11), "batch must be between 1 and the 10 images there are, got 11"),
        ((0, 0, 10, 0), "got 0"),
        ((0, 0, 0, 1), "0 images"),
        ((0, -1, 10, 5), "step=-1"),
        ((-1, 0, 10, 5), "seed=-1"),
    ],
)
def test_impossible_batches_are_refused(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        order.batch_indices(*arguments)
