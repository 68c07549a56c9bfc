"""Resampling and colour against jax.image, scipy, colorsys and values computed by hand."""

import colorsys
import itertools
from functools import partial

import dm_pix
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from byov_jax.images import ops


def random_planes(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).random(shape, dtype=np.float32))


def boxes(height: int, width: int, count: int):
    """Random boxes of an image, one pixel wide or high among them, and the whole image."""
    rng = np.random.default_rng(height * width)
    yield 0, 0, height, width
    yield height - 1, 0, 1, width
    yield 0, width // 2, height, 1
    for _ in range(count):
        top, left = rng.integers(0, height), rng.integers(0, width)
        yield top, left, rng.integers(1, height - top + 1), rng.integers(1, width - left + 1)


@partial(jax.jit, static_argnums=(5, 6))  # the box is traced: one compilation for all boxes of an image
def resize_box(image, top, left, box_height, box_width, out_height, out_width):
    rows = ops.resize_matrix(top, box_height, image.shape[1], out_height)
    columns = ops.resize_matrix(left, box_width, image.shape[2], out_width)
    return ops.separable(image, rows, columns)


@pytest.mark.parametrize(
    ("height", "width", "out_height", "out_width"),
    [(28, 28, 28, 28), (17, 40, 24, 24), (96, 64, 32, 20), (3, 2, 16, 16)],
)
def test_a_resized_box_is_the_bicubic_resize_of_the_cropped_image(height, width, out_height, out_width):
    image = random_planes(3, height, width)
    for top, left, box_height, box_width in boxes(height, width, count=2):
        crop = image[:, top : top + box_height, left : left + box_width]
        expected = jax.image.resize(crop, (3, out_height, out_width), "cubic", antialias=True)
        result = resize_box(image, top, left, box_height, box_width, out_height, out_width)
        np.testing.assert_allclose(result, expected, atol=1e-5)


def bicubic_matrix(start, length, size, out_size):
    """Reference for `ops.resize_matrix` in float64, from coordinates in pixels."""
    scale = length / out_size
    pixel = np.arange(size) - start
    x = np.abs((np.arange(out_size)[:, None] + 0.5) * scale - 0.5 - pixel) / max(scale, 1.0)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0)) * ((pixel >= 0) & (pixel < length))
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("box", [(31, 7, 201, 240), (0, 0, 300, 260), (120, 90, 40, 30), (299, 5, 1, 224)])
def test_resize_is_exact_at_the_size_of_imagenet(box):
    top, left, box_height, box_width = box
    image = random_planes(3, 300, 260)
    rows, columns = bicubic_matrix(top, box_height, 300, 224), bicubic_matrix(left, box_width, 260, 224)
    expected = rows @ np.asarray(image, np.float64) @ columns.T
    np.testing.assert_allclose(resize_box(image, *box, 224, 224), expected, atol=2e-6)


@pytest.mark.parametrize("size", [1, 20, 64])
def test_resize_weights_sum_to_one_and_stay_inside_the_box(size):
    matrix = jax.jit(lambda start, length: ops.resize_matrix(start, length, 20, size))
    for start, length in itertools.product(range(20), range(1, 21)):
        if start + length <= 20:
            weights = np.asarray(matrix(jnp.array(start), jnp.array(length)))
            np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)
            assert not weights[:, :start].any()
            assert not weights[:, start + length :].any()


def test_the_whole_axis_at_its_own_size_is_the_identity():
    np.testing.assert_array_equal(ops.resize_matrix(0, 33, 33, 33), np.eye(33))


def test_separable_applies_rows_then_columns_to_every_plane():
    image, rows, columns = random_planes(3, 4, 5), random_planes(6, 4, seed=1), random_planes(2, 5, seed=2)
    expected = np.stack([rows @ plane @ columns.T for plane in np.asarray(image)])
    np.testing.assert_allclose(ops.separable(image, rows, columns), expected, rtol=1e-5)


@pytest.mark.parametrize(("sigma", "radius"), [(0.1, 3), (0.5, 2), (1.0, 11), (2.0, 3), (6.0, 11)])
def test_blur_is_scipys_truncated_gaussian_in_the_interior(sigma, radius):
    signal = np.random.default_rng(0).random(48)
    expected = ndimage.gaussian_filter1d(signal, sigma, radius=radius)
    blurred = ops.gaussian_matrix(48, sigma, radius) @ signal.astype(np.float32)
    np.testing.assert_allclose(blurred[radius:-radius], expected[radius:-radius], atol=1e-6)


def test_blur_renormalises_at_the_border():
    weights = np.exp(-0.5 * np.array([0.0, 1.0]) ** 2 / 0.8**2)
    matrix = np.asarray(ops.gaussian_matrix(5, 0.8, 1))
    np.testing.assert_allclose(matrix[0], [*(weights / weights.sum()), 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(matrix.sum(1), 1.0, rtol=1e-6)
    assert np.count_nonzero(matrix[2]) == 3


def test_brightness_adds_and_clips():
    image = jnp.array([0.0, 0.5, 0.9]).reshape(1, 1, 3)
    np.testing.assert_allclose(ops.brightness(image, 0.25).ravel(), [0.25, 0.75, 1.0])
    np.testing.assert_allclose(ops.brightness(image, -0.25).ravel(), [0.0, 0.25, 0.65])


def test_contrast_scales_around_the_mean_of_each_plane_and_clips():
    image = jnp.array([[[0.2, 0.4]], [[0.1, 0.9]]])
    np.testing.assert_allclose(ops.contrast(image, 0.5), [[[0.25, 0.35]], [[0.3, 0.7]]], rtol=1e-6)
    np.testing.assert_allclose(ops.contrast(image, 2.0), [[[0.1, 0.5]], [[0.0, 1.0]]], rtol=1e-6)


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8, 1.0, 1.2, 3.0])
def test_saturation_equals_dm_pix(factor):
    image = random_planes(3, 20, 20)
    expected = jax.jit(partial(dm_pix.adjust_saturation, channel_axis=0))(image, factor)
    np.testing.assert_allclose(ops.saturation(image, factor), expected, atol=2e-6)


@pytest.mark.parametrize("turns", [-0.5, -0.1, 0.0, 0.03, 0.1, 0.5, 1.0, 2.25])
def test_hue_equals_colorsys(turns):
    image = random_planes(3, 6, 6)

    def rotate(pixel):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixel))
        return colorsys.hsv_to_rgb((hue + turns) % 1.0, saturation, value)

    expected = np.apply_along_axis(rotate, 0, np.asarray(image))
    np.testing.assert_allclose(ops.hue(image, turns), expected, atol=3e-6)


def test_a_third_of_a_turn_moves_every_channel_to_the_next():
    image = random_planes(3, 5, 5)
    np.testing.assert_allclose(ops.hue(image, 1 / 3), jnp.roll(image, 1, axis=0), atol=1e-6)


@pytest.mark.parametrize(
    "color", [(0, 0, 0), (1, 1, 1), (0.3, 0.3, 0.3), (1, 0, 0), (0, 1, 1), (0.5, 0.5, 0)]
)
def test_colour_transforms_are_finite_and_bounded_on_constant_images(color):
    image = jnp.broadcast_to(jnp.array(color, jnp.float32)[:, None, None], (3, 4, 4))
    for transform in (ops.brightness, ops.contrast, ops.saturation, ops.hue):
        for amount in (-0.4, 0.0, 0.1, 1.4):
            result = np.asarray(transform(image, amount))
            assert np.isfinite(result).all()
            assert (result >= 0.0).all()
            assert (result <= 1.0).all()
            assert np.ptp(result, axis=(1, 2)).max() < 1e-6, transform.__name__


def test_grayscale_is_the_luma_on_all_planes():
    image = random_planes(3, 4, 4)
    luma = 0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    np.testing.assert_allclose(ops.grayscale(image), jnp.stack([luma] * 3), rtol=1e-5)


def test_solarize_inverts_at_and_above_the_threshold():
    image = jnp.array([0.0, 0.4, 0.5, 0.75, 1.0]).reshape(1, 1, 5)
    np.testing.assert_allclose(ops.solarize(image, 0.5).ravel(), [0.0, 0.4, 0.5, 0.25, 0.0])
    np.testing.assert_allclose(ops.solarize(image, 0.75).ravel(), [0.0, 0.4, 0.5, 0.25, 0.0])
    np.testing.assert_allclose(ops.solarize(image, 0.4).ravel(), [0.0, 0.6, 0.5, 0.25, 0.0], rtol=1e-6)


def test_to_float_scales_bytes_and_keeps_floats():
    np.testing.assert_allclose(ops.to_float(np.array([0, 51, 255], np.uint8)), [0.0, 0.2, 1.0])
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        result = ops.to_float(jnp.array([0.0, 0.25, 1.0], dtype))
        assert result.dtype == jnp.float32
        np.testing.assert_array_equal(result, [0.0, 0.25, 1.0])


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.bool_])
def test_to_float_rejects_other_types(dtype):
    with pytest.raises(ValueError, match=rf"dtype {np.dtype(dtype)}; allowed: uint8"):
        ops.to_float(np.zeros((2, 2), dtype))


@pytest.mark.parametrize("batch", [(), (4,), (2, 4)])
def test_normalize_is_per_channel(batch):
    images = jnp.broadcast_to(jnp.array([0.5, 0.25, 1.0]), (*batch, 2, 2, 3))
    result = ops.normalize(images, mean=(0.5, 0.5, 0.5), std=(1.0, 0.5, 0.25))
    np.testing.assert_allclose(result, np.broadcast_to([0.0, -0.5, 2.0], result.shape))


def test_normalize_needs_one_value_per_channel():
    with pytest.raises(ValueError, match="one value per channel; the images have 3"):
        ops.normalize(jnp.zeros((2, 2, 3)), mean=(0.5,), std=(0.5,))
