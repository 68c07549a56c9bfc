"""Sharded inference: every image once and in order, for any padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from byov_jax.distributed import inference


class RecordingArray:
    """An array that records which of its rows were read."""

    def __init__(self, array):
        self.array, self.rows = array, []

    def __getitem__(self, rows):
        self.rows += list(rows)
        return self.array[rows]


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("count", [1, 8, 13, 40])
def test_every_image_once_and_in_order(devices, count, monkeypatch):
    monkeypatch.setattr(inference, "PER_DEVICE", 2)
    mesh = jax.make_mesh(
        (devices,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices]
    )
    images = np.arange(50, dtype=np.uint8).reshape(50, 1, 1, 1)
    rows = np.random.default_rng(0).permutation(50)[:count]
    array = RecordingArray(images)
    doubled, total = inference.apply_sharded(mesh, apply, {"scale": jnp.asarray(2.0)}, array, rows)
    np.testing.assert_array_equal(doubled, 2.0 * rows)
    np.testing.assert_array_equal(total, rows)
    assert set(array.rows) == set(rows)
    assert isinstance(doubled, np.ndarray)


def apply(variables, images):
    x = images[:, 0, 0, 0].astype(jnp.float32)
    return variables["scale"] * x, x
