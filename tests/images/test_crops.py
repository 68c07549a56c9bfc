"""Random central crops: against a crop by hand, their distribution, keys, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from byov_jax import images
from byov_jax.images import crops

KEY = jax.random.key(0)


def ramps(n: int, height: int, width: int) -> np.ndarray:
    """Images whose channels are the row and the column of each pixel, in pixels from the centre."""
    y, x = np.meshgrid(*(np.arange(size) - (size - 1) / 2 for size in (height, width)), indexing="ij")
    return np.broadcast_to(np.stack([y, x], axis=-1), (n, height, width, 2)).astype(np.float32)


def fractions(cropped: np.ndarray) -> np.ndarray:
    """The slopes of cropped ramps at the centre, [n, 2]: the fractions of height and width that remain."""
    _, height, width, _ = cropped.shape
    steps = [np.diff(cropped[..., channel], axis=1 + channel) for channel in (0, 1)]
    return np.stack([step[:, height // 2 - 1, width // 2 - 1] for step in steps], axis=1)


def test_a_crop_samples_the_centre_of_its_image():
    """Bilinear interpolation of a ramp is exact: pixel x shows `fraction * x`, counted from the centre."""
    pixels = ramps(50, 24, 17)
    cropped = images.center_crops(KEY, pixels)
    fraction = fractions(np.asarray(cropped))
    np.testing.assert_allclose(fraction[:, 0], fraction[:, 1], atol=1e-4)
    np.testing.assert_allclose(cropped, fraction[:, :1, None, None] * pixels, atol=1e-3)


def test_fractions_are_uniform():
    fraction = np.sort(fractions(np.asarray(images.center_crops(KEY, ramps(2000, 4, 4))))[:, 0])
    low, high = crops.SIDE
    assert low <= fraction[0] < low + 0.01
    assert high - 0.01 < fraction[-1] <= high
    uniform = low + (high - low) * (np.arange(2000) + 0.5) / 2000
    np.testing.assert_allclose(fraction, uniform, atol=0.03)


def test_an_image_has_the_same_crop_in_any_batch():
    pixels = np.random.default_rng(0).random((6, 8, 8, 3), np.float32)
    whole = images.center_crops(KEY, pixels)
    np.testing.assert_allclose(images.center_crops(KEY, pixels[:4]), whole[:4], atol=1e-6)
    assert np.abs(images.center_crops(jax.random.key(1), pixels) - whole).max() > 0.01


def test_bytes_become_floats_and_values_keep_their_range():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 12, 1), np.uint8)
    cropped = images.center_crops(KEY, pixels)
    assert cropped.dtype == jnp.float32
    assert cropped.shape == pixels.shape
    assert cropped.min() >= 0
    assert cropped.max() <= 1 + 1e-6
    np.testing.assert_allclose(images.center_crops(KEY, pixels.astype(np.float32) / 255), cropped, atol=1e-6)
    half = images.center_crops(KEY, jnp.full((2, 8, 8, 3), 0.25, jnp.bfloat16))
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, 0.25, atol=1e-6)


def test_jit_and_vmap():
    pixels = np.random.default_rng(0).random((3, 4, 8, 8, 3), np.float32)
    keys = jax.random.split(KEY, 3)
    one_by_one = np.stack([images.center_crops(*pair) for pair in zip(keys, pixels, strict=True)])
    mapped = jax.jit(jax.vmap(images.center_crops))(keys, pixels)
    np.testing.assert_allclose(mapped, one_by_one, atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 8, 3), (0, 8, 8, 3), (2, 8, 0, 3)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"images have shape .*; allowed: \[n, height, width, channels\]"):
        images.center_crops(KEY, np.zeros(shape, np.float32))


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="images have dtype int32"):
        images.center_crops(KEY, np.zeros((2, 8, 8, 3), np.int32))
