"""Data order: a pure function of (seed, step), each image exactly once an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byov_jax.data.loading import order


def stream(seed: int, steps: int, size: int, batch: int) -> np.ndarray:
    return np.concatenate([order.batch_indices(seed, step, size, batch) for step in range(steps)])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_epoch_has_each_image_exactly_once_whatever_the_batch(data):
    size = data.draw(st.integers(1, 100))
    batch = data.draw(st.integers(1, size))
    found = stream(data.draw(st.integers(0, 2**64)), -(-4 * size // batch), size, batch)
    for epoch in range(4):
        np.testing.assert_array_equal(np.sort(found[epoch * size : (epoch + 1) * size]), np.arange(size))


def test_the_batch_size_does_not_change_the_order_of_the_images():
    whole = stream(5, 3, 60, 60)
    for batch in (1, 7, 32):
        np.testing.assert_array_equal(stream(5, 180 // batch, 60, batch), whole[: 180 // batch * batch])


def test_epochs_and_seeds_differ():
    orders = [tuple(epoch) for seed in range(4) for epoch in stream(seed, 4, 64, 64).reshape(4, 64)]
    assert len(set(orders)) == 16


def test_steps_asked_in_any_order_give_the_same_batches():
    forward = {step: order.batch_indices(7, step, 100, 32).copy() for step in range(12)}
    for step in (11, 0, 5, 5, 3, 10, 1):
        order.batch_indices(8, 4 * step, 100, 32)  # another run in between
        np.testing.assert_array_equal(order.batch_indices(7, step, 100, 32), forward[step])


def test_the_order_is_the_same_on_every_machine_and_numpy():
    assert order.batch_indices(1, 0, 10, 5).tolist() == [0, 5, 7, 4, 8]
    assert order.batch_indices(2**40, 3, 10, 5).tolist() == [6, 5, 0, 9, 4]


@pytest.mark.parametrize("step", [0, 1], ids=["within an epoch", "over its end"])
def test_the_batch_cannot_be_changed_by_accident(step):
    with pytest.raises(ValueError, match="read-only"):
        order.batch_indices(0, step, 10, 6)[0] = 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((0, 0, 10, 11), "batch must be between 1 and 10, the number of images, got 11"),
        ((0, 0, 10, 0), "got 0"),
        ((0, 0, 0, 1), "between 1 and 0, the number of images"),
        ((0, -1, 10, 5), "step=-1"),
        ((-1, 0, 10, 5), "seed=-1"),
    ],
)
def test_impossible_batches_are_refused(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        order.batch_indices(*arguments)
