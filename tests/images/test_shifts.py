"""The shifts: strengths, each shift against NumPy and SciPy, keys, batches and errors."""

import jax
import jax.numpy as jnp
import jaxtyping
import matplotlib.colors
import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
from PIL import Image

from byov_jax.data.sources import fashion_mnist
from byov_jax.images import ops, shifts

KEY = jax.random.key(7)
RANDOM = ("gaussian_noise", "salt_pepper", "shot", "speckle", "shear", "rotate")
EXACT = tuple(name for name in shifts.NAMES if name not in RANDOM)
CLOTHES = fashion_mnist.load().test.image[::250]  # [8, 28, 28, 1]


def scenes(count: int, height: int, width: int) -> np.ndarray:
    """Smooth colours under sharp shapes, over the full range from 0 to 1."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width][..., None] / max(height, width)
    images = []
    for _ in range(count):
        frequencies, phases = rng.uniform(-8, 8, (12, 2, 3)), rng.uniform(0, 2 * np.pi, (12, 3))
        image = sum(np.sin(f[0] * y + f[1] * x + phase) for f, phase in zip(frequencies, phases, strict=True))
        for top, left, side in rng.uniform(0.1, 0.5, (4, 3)):
            inside = (y > top) & (y < top + side) & (x > left) & (x < left + side)
            image = np.where(inside, rng.uniform(-6, 6, 3), image)
        low, high = image.min(axis=(0, 1)), image.max(axis=(0, 1))
        images.append((image - low) / (high - low))
    return np.stack(images).astype(np.float32)


SMALL, LARGE = scenes(2, 32, 40), scenes(1, 224, 160)  # not square: rows and columns must not be mixed up
GREY = np.full_like(LARGE, 0.5)


def test_the_table_is_the_published_one():
    small = {name: table.small for name, table in shifts.STRENGTHS.items()}
    large = {name: table.large for name, table in shifts.STRENGTHS.items()}
    same = {
        "shear": (0.06, 0.12, 0.18, 0.24, 0.30),
        "rotate": (6, 12, 18, 24, 30),
        "solarize": (0.9, 0.75, 0.6, 0.45, 0.3),
        "posterize": (7, 6, 5, 4, 3),
    }
    assert small == same | {
        "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "salt_pepper": (0.01, 0.02, 0.03, 0.05, 0.07),
        "shot": (500, 250, 100, 75, 50),
        "speckle": (0.06, 0.1, 0.12, 0.16, 0.2),
        "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    }
    assert large == same | {
        "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "salt_pepper": (0.03, 0.06, 0.09, 0.17, 0.27),
        "shot": (60, 25, 12, 5, 3),
        "speckle": (0.15, 0.2, 0.35, 0.45, 0.6),
        "gaussian_blur": (1, 2, 3, 4, 6),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
    }
    assert " ".join(shifts.NAMES) == (
        "gaussian_noise salt_pepper shot speckle gaussian_blur contrast brightness pixelate shear rotate "
        "solarize posterize"
    )


def test_images_are_large_from_64_pixels_along_the_shorter_side():
    assert shifts.strength("gaussian_blur", 5, 63) == 1.0
    assert shifts.strength("gaussian_blur", 5, 64) == 6.0
    for height, width, offset in ((63, 99, 0.3), (99, 63, 0.3), (64, 64, 0.5)):
        black = np.zeros((1, height, width, 1), np.uint8)
        np.testing.assert_allclose(shifts.apply("brightness", 5, KEY, black), offset)


@pytest.mark.parametrize("name", shifts.NAMES)
@pytest.mark.parametrize("images", [CLOTHES, SMALL, LARGE], ids=["28 grey", "32x40", "224x160"])
def test_the_change_increases_with_severity(name, images):
    original = ops.to_float(images)
    change = []
    for severity in range(6):
        shifted = shifts.apply(name, severity, KEY, images)
        assert shifted.shape == images.shape
        assert shifted.dtype == jnp.float32
        assert np.all((shifted >= 0) & (shifted <= 1))  # NaN is neither
        change.append(np.mean(np.abs(shifted - original)))
    assert change[0] == 0.0
    increase = np.diff(change)
    if name == "pixelate" and images is LARGE:
        # The published grids of 0.5 and 0.4 of the side change these scenes alike: Pillow's box filter too.
        assert abs(increase[2]) < 0.03 * change[2]
        increase = np.delete(increase, 2)
    assert np.all(increase > 0), change


@pytest.mark.parametrize("name", shifts.NAMES)
def test_results_depend_only_on_the_key_and_the_index_of_an_image(name):
    twins = np.repeat(CLOTHES[:1], len(CLOTHES), axis=0)
    shifted, again = (np.asarray(shifts.apply(name, 3, KEY, twins)) for _ in range(2))
    np.testing.assert_array_equal(shifted, again)
    other = np.asarray(shifts.apply(name, 3, jax.random.key(8), twins))
    assert np.array_equal(shifted, other) == (name in EXACT)
    assert np.array_equal(shifted, shifted[::-1]) == (name in EXACT)
    later = np.asarray(shifts.apply(name, 3, KEY, twins, first=3))
    np.testing.assert_array_equal(later[:-3], shifted[3:])


@pytest.mark.parametrize("name", ["salt_pepper", "shot", "gaussian_blur", "contrast", "pixelate", "rotate"])
def test_batches_equal_the_whole(name):  # one of each kind: another size of the batch compiles again
    whole = shifts.apply(name, 4, KEY, SMALL)
    batches = [shifts.apply(name, 4, KEY, SMALL[i : i + 1], first=i) for i in range(len(SMALL))]
    rounding = 1e-6 if name in ("gaussian_blur", "contrast", "pixelate") else 0.0  # where values are summed
    np.testing.assert_allclose(np.concatenate(batches), whole, rtol=0, atol=rounding)


@pytest.mark.parametrize("name", shifts.NAMES)
def test_all_severities_share_one_program(name):
    shifts.apply(name, 1, KEY, CLOTHES)
    compiled = shifts._corrupt._cache_size()
    for severity in range(2, 6):
        shifts.apply(name, severity, KEY, CLOTHES, first=severity)
    shifts.corrupt(name, jnp.float32(1.0), KEY, CLOTHES / np.float32(255))
    shifts.corrupt(name, 1, KEY, CLOTHES)
    assert shifts._corrupt._cache_size() == compiled


@pytest.mark.parametrize("name", shifts.NAMES)
def test_results_are_float32_also_where_64_bits_are_enabled(name):
    with jax.enable_x64(True):
        shape = jax.eval_shape(lambda: shifts.apply(name, 2, KEY, jnp.asarray(SMALL, jnp.float64)))
    assert shape.dtype == jnp.float32
    assert shape.shape == SMALL.shape


def test_a_sweep_of_strengths_can_be_compiled():
    sweep = jax.jit(jax.vmap(lambda sigma: shifts.corrupt("gaussian_noise", sigma, KEY, GREY)))
    sigmas = jnp.array([0.0, 0.03, 0.06])
    for sigma, shifted in zip(sigmas, sweep(sigmas), strict=True):
        np.testing.assert_allclose(shifted, shifts.corrupt("gaussian_noise", sigma, KEY, GREY), atol=1e-6)


@pytest.mark.parametrize("name", shifts.NAMES)
def test_a_severity_can_be_traced_and_mapped(name):
    shifted = jax.jit(jax.vmap(lambda severity: shifts.apply(name, severity, KEY, SMALL)))(jnp.arange(-1, 7))
    for severity in range(6):
        expected = shifts.apply(name, severity, KEY, SMALL)
        np.testing.assert_allclose(shifted[severity + 1], expected, atol=1e-5)
    assert np.isnan(shifted[0]).all()
    assert np.isnan(shifted[7]).all()


def test_a_severity_is_a_whole_number_inside_jit_too():
    for severity in (jnp.float32(2), jnp.arange(2)):
        for call in (shifts.apply, jax.jit(shifts.apply, static_argnums=0)):
            with pytest.raises(ValueError, match=r"severity=.*; allowed: an integer from 0 to 5"):
                call("shear", severity, KEY, SMALL)
    np.testing.assert_array_equal(
        shifts.apply("shear", jnp.int32(2), KEY, SMALL), shifts.apply("shear", 2, KEY, SMALL)
    )


@pytest.mark.parametrize("name", shifts.NAMES)
@pytest.mark.parametrize("severity", [0, 3])
def test_values_outside_by_rounding_are_clipped(name, severity):
    """As 1.0000002, which a resize or a decoder may give."""
    rounded = np.where(SMALL > 0.5, np.float32(1.0000002), np.float32(-1e-6))
    clipped = np.clip(rounded, 0, 1)
    found = shifts.apply(name, severity, KEY, rounded)
    np.testing.assert_array_equal(found, shifts.apply(name, severity, KEY, clipped))
    with pytest.raises(ValueError, match=r"values from .* to 1\.0001"):
        shifts.apply(name, severity, KEY, rounded + np.float32(1e-4))


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_any_kind_of_key_is_accepted(impl):
    key = jax.random.key(0, impl=impl)
    assert jax.eval_shape(lambda: shifts.apply("shot", 3, key, SMALL)).shape == SMALL.shape
    whole = shifts.apply("salt_pepper", 3, key, CLOTHES)
    later = shifts.apply("salt_pepper", 3, key, np.roll(CLOTHES, -3, axis=0), first=3)
    np.testing.assert_array_equal(later[:-3], whole[3:])


@pytest.mark.parametrize(
    ("name", "strength"),
    [
        ("gaussian_noise", 0.0),
        ("salt_pepper", 0.0),
        ("speckle", 0.0),
        ("gaussian_blur", 0.0),
        ("brightness", 0.0),
        ("pixelate", 1.0),
        ("shear", 0.0),
        ("rotate", 0.0),
        ("posterize", 8.0),
    ],
)
def test_the_neutral_strength_is_the_identity(name, strength):
    shifted = shifts.corrupt(name, strength, KEY, CLOTHES)
    np.testing.assert_array_equal(shifted, ops.to_float(CLOTHES))


def test_gaussian_noise_has_the_standard_deviation_of_the_table():
    for sigma in (0.04, 0.08):
        noise = np.asarray(shifts.corrupt("gaussian_noise", sigma, KEY, GREY)) - 0.5
        assert abs(noise.mean()) < 4 * sigma / noise.size**0.5
        assert noise.std() == pytest.approx(sigma, rel=4 / (2 * noise.size) ** 0.5)
        assert scipy.stats.kstest(noise.ravel() / sigma, "norm").pvalue > 0.001
    assert np.max(np.abs(np.corrcoef(noise.reshape(-1, 3).T) - np.eye(3))) < 5 / (noise.size / 3) ** 0.5


def test_speckle_is_proportional_to_the_value():
    for value in (0.2, 0.5):
        noise = np.asarray(shifts.corrupt("speckle", 0.15, KEY, np.full_like(GREY, value))) - value
        assert noise.std() == pytest.approx(0.15 * value, rel=4 / (2 * noise.size) ** 0.5)


@pytest.mark.parametrize("rate", [500, 60, 12, 3])
@pytest.mark.parametrize("value", [0.5, 0.2])
def test_shot_counts_are_poisson(rate, value):
    shifted = np.asarray(shifts.corrupt("shot", rate, KEY, np.full_like(GREY, value)))
    counts = shifted.ravel().astype(np.float64) * rate
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-3)
    poisson = scipy.stats.poisson(rate * np.float64(value))
    values = np.arange(rate)  # the last bin, at the rate itself, holds all clipped counts
    expected = np.append(poisson.pmf(values), poisson.sf(rate - 1))
    frequencies = np.bincount(np.round(counts).astype(int), minlength=rate + 1) / len(counts)
    # Five standard errors, and room for a single count where hardly any is expected.
    assert np.all(np.abs(frequencies - expected) < 5 * np.sqrt(expected / len(counts)) + 2 / len(counts))
    if rate >= 60:  # hardly any is clipped
        error = 4 * np.sqrt((2 + 1 / (rate * value)) / len(counts))
        assert shifted.var() == pytest.approx(value / rate, rel=error)


def test_salt_and_pepper_are_equally_frequent():
    for amount in (0.03, 0.27, 1.0):
        shifted = np.asarray(shifts.corrupt("salt_pepper", amount, KEY, GREY))
        for value, fraction in ((1.0, amount / 2), (0.0, amount / 2), (0.5, 1 - amount)):
            error = 4 * np.sqrt(fraction * (1 - fraction) / shifted.size)
            assert np.mean(shifted == value) == pytest.approx(fraction, abs=error)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0, 6.0])
def test_the_blur_equals_scipy_away_from_the_border(sigma):
    blurred = shifts.corrupt("gaussian_blur", sigma, KEY, LARGE)
    expected = scipy.ndimage.gaussian_filter(LARGE.astype(np.float64), (0, sigma, sigma, 0), truncate=6)
    inside = np.s_[:, 36:-36, 36:-36]
    np.testing.assert_allclose(blurred[inside], expected[inside], atol=2e-6)


def test_a_blurred_point_has_the_variance_of_the_kernel():
    point = np.zeros_like(LARGE)
    point[0, 100, 70] = 1.0
    blurred = np.asarray(shifts.corrupt("gaussian_blur", 3.0, KEY, point), np.float64)[0, ..., 1]
    y, x = np.mgrid[:224, :160]
    assert blurred.sum() == pytest.approx(1.0, abs=1e-5)
    assert np.sum(blurred * (y - 100) ** 2) == pytest.approx(9.0, rel=1e-4)
    assert np.sum(blurred * (x - 70) ** 2) == pytest.approx(9.0, rel=1e-4)


def test_the_blur_of_a_constant_image_is_the_identity():
    np.testing.assert_allclose(shifts.corrupt("gaussian_blur", 6.0, KEY, GREY), GREY, atol=1e-6)


def sample_linearly(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Sample each point from `matrix @ point`, relative to the centre, with SciPy."""
    center = (np.array(image.shape[:2]) - 1) / 2
    offset = center - matrix @ center
    planes = [
        scipy.ndimage.affine_transform(image[..., c], matrix, offset, order=1, mode="grid-constant")
        for c in range(image.shape[-1])
    ]
    return np.stack(planes, axis=-1)


@pytest.mark.parametrize("strength", [0.3, 1.0])
@pytest.mark.parametrize("name", ["shear", "rotate"])
@pytest.mark.parametrize("images", [CLOTHES / np.float32(255), SMALL], ids=["28 grey", "32x40"])
def test_warps_equal_scipy_in_both_directions(images, name, strength):
    def matrix(sign):
        if name == "shear":
            return np.array([[1, 0], [sign * strength, 1]])
        angle = sign * np.deg2rad(60 * strength)
        return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    shifted = shifts.corrupt(name, strength if name == "shear" else 60 * strength, KEY, images)
    sides = []
    for before, after in zip(images.astype(np.float64), shifted, strict=True):
        errors = [np.max(np.abs(after - sample_linearly(before, matrix(sign)))) for sign in (1, -1)]
        assert min(errors) < 1e-4  # a coordinate is off by 1e-5 pixels
        sides.append(errors[0] < errors[1])
    assert len(images) == 2 or 0 < sum(sides) < len(images)


def test_point_transforms_equal_numpy():
    images = np.resize(np.arange(256, dtype=np.uint8), CLOTHES.shape)
    x = np.asarray(ops.to_float(images))
    for threshold in shifts.STRENGTHS["solarize"].small:
        expected = np.where(x >= np.float32(threshold), 1 - x, x)
        np.testing.assert_array_equal(shifts.corrupt("solarize", threshold, KEY, images), expected)
    for bits in range(9):
        expected = ops.to_float(images & np.uint8(0xFF00 >> bits & 0xFF))
        np.testing.assert_array_equal(shifts.corrupt("posterize", bits, KEY, images), expected)
    for offset in (0.3, -0.3):
        expected = np.clip(x + np.float32(offset), 0, 1)
        np.testing.assert_allclose(shifts.corrupt("brightness", offset, KEY, images), expected, atol=1e-6)


def test_contrast_keeps_the_mean_of_each_channel():
    for factor in (0.0, 0.15, 0.75, 3.0):
        mean = SMALL.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
        expected = np.clip(mean + factor * (SMALL - mean), 0, 1)
        np.testing.assert_allclose(shifts.corrupt("contrast", factor, KEY, SMALL), expected, atol=1e-6)


@pytest.mark.parametrize("factor", [0.9, 0.65, 0.25, 0.0])
def test_pixels_of_a_cell_become_their_mean(factor):
    shifted = shifts.corrupt("pixelate", factor, KEY, SMALL)
    expected = SMALL.astype(np.float64)
    for axis in (1, 2):
        size = SMALL.shape[axis]
        cells = max(int(factor * size), 1)
        edges = np.arange(1, cells) * size / cells
        groups = np.split(np.arange(size), np.searchsorted(np.arange(size) + 0.5, edges))
        assert len(groups) == cells
        means = [np.mean(np.take(expected, group, axis), axis, keepdims=True) for group in groups]
        expected = np.concatenate(
            [mean.repeat(len(group), axis) for mean, group in zip(means, groups, strict=True)], axis
        )
    np.testing.assert_allclose(shifted, expected, atol=1e-6)


@pytest.mark.parametrize("size", [28, 32, 160, 224])
@pytest.mark.parametrize("severity", range(1, 6))
def test_pixelation_is_that_of_imagenet_c(size, severity):
    """Pillow's box filter down to a truncated size and up again, as the corruption is published."""
    plane = np.random.default_rng(0).random((size, size)).astype(np.float32)
    cells = int(size * float(shifts.strength("pixelate", severity, size)))
    image = Image.fromarray(plane).resize((cells, cells), Image.Resampling.BOX)
    expected = np.asarray(image.resize((size, size), Image.Resampling.BOX))
    found = shifts.apply("pixelate", severity, KEY, plane[None, :, :, None])[0, :, :, 0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("size", "cells"), [(32, (30, 28, 27, 24, 20)), (224, (134, 112, 89, 67, 56))])
def test_the_grid_of_pixelation_is_truncated(size, cells):
    """Down from 30.4, 28.8, 27.2, 24, 20.8 and from 134.4, 112, 89.6, 67.2, 56 cells."""
    ramp = np.broadcast_to(np.linspace(0, 1, size, dtype=np.float32)[None, None, :, None], (1, size, size, 1))
    for severity, expected in enumerate(cells, start=1):
        row = shifts.apply("pixelate", severity, KEY, ramp)[0, 0, :, 0]
        assert len(np.unique(np.round(row, 5))) == expected


@pytest.mark.parametrize(
    ("color", "offset", "expected"),
    [
        ((0.2, 0.4, 0.8), 0.1, (0.225, 0.45, 0.9)),  # times .9 / .8
        ((0.5, 0.25, 0.0), 0.5, (1.0, 0.5, 0.0)),  # twice; a channel of 0 keeps it
        ((0.6, 0.3, 0.9), 0.3, (2 / 3, 1 / 3, 1.0)),  # the value ends at 1
        ((0.3, 0.3, 0.3), 0.1, (0.4, 0.4, 0.4)),
        ((0.0, 0.0, 0.0), 0.2, (0.2, 0.2, 0.2)),
    ],
)
def test_brightness_of_known_colors(color, offset, expected):
    image = np.array(color, np.float32).reshape(1, 1, 1, 3)
    np.testing.assert_allclose(shifts.corrupt("brightness", offset, KEY, image)[0, 0, 0], expected, atol=1e-6)


@pytest.mark.parametrize("offset", [0.1, 0.5, -0.3])
def test_brightness_adds_to_the_value_of_hsv(offset):
    colors = np.random.default_rng(0).random((1, 8, 8, 3)).astype(np.float32)
    colors[0, 0, 0] = 0.0
    hsv = matplotlib.colors.rgb_to_hsv(colors)
    hsv[..., 2] = np.clip(hsv[..., 2] + offset, 0, 1)
    found = shifts.corrupt("brightness", offset, KEY, colors)
    np.testing.assert_allclose(found, matplotlib.colors.hsv_to_rgb(hsv), atol=1e-6)


@pytest.mark.parametrize("severity", [-1, 6, 2.5, 2.0, "3", None])
def test_severities_are_0_to_5(monkeypatch, severity):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of tests
    with pytest.raises(ValueError, match=r"severity=.*; allowed: an integer from 0 to 5"):
        shifts.apply("shear", severity, KEY, CLOTHES)
    with pytest.raises(ValueError, match=r"severity=.*; allowed: an integer from 1 to 5"):
        shifts.strength("shear", severity, 28)


def test_unknown_shifts_are_an_error_that_lists_the_known_ones():
    for call in (
        lambda: shifts.apply("fog", 1, KEY, CLOTHES),
        lambda: shifts.corrupt("fog", 1, KEY, CLOTHES),
        lambda: shifts.strength("fog", 1, 28),
    ):
        with pytest.raises(ValueError, match=f"shift 'fog'; allowed: {', '.join(shifts.NAMES)}"):
            call()


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        (CLOTHES[0], r"shape \(28, 28, 1\); allowed: \[n, height, width, 1 or 3\]"),
        (CLOTHES[..., 0], r"shape \(8, 28, 28\)"),
        (np.zeros((2, 4, 4, 2), np.uint8), r"shape \(2, 4, 4, 2\)"),
        (np.zeros((2, 0, 4, 1), np.uint8), r"shape \(2, 0, 4, 1\)"),
        (CLOTHES.astype(np.int32), "dtype int32; allowed: uint8"),
        (CLOTHES.astype(np.float32), r"values from 0.0 to 255.0; allowed: uint8, or floats in \[0, 1\]"),
        (SMALL - 0.25, "values from -0.25 to 0.75"),
        (np.where(SMALL > 0.5, np.nan, SMALL), "values from nan to nan"),
    ],
)
def test_invalid_images_are_an_error(images, problem):
    for call in (
        lambda: shifts.apply("contrast", 0, KEY, images),
        lambda: shifts.apply("contrast", 3, KEY, images),
        lambda: shifts.corrupt("contrast", 0.5, KEY, images),
    ):
        with pytest.raises(ValueError, match=problem):
            call()


@pytest.mark.parametrize(
    ("name", "strength"),
    [("gaussian_noise", -0.1), ("shot", 0.0), ("posterize", 9), ("solarize", 1.1), ("shear", np.inf)],
)
def test_strengths_out_of_range_are_an_error(name, strength):
    for value in (strength, float("nan")):
        with pytest.raises(ValueError, match=r"strength=.*; allowed: finite numbers from"):
            shifts.corrupt(name, value, KEY, CLOTHES)


def test_a_negative_index_is_an_error():
    with pytest.raises(ValueError, match="first=-1; allowed"):
        shifts.apply("shear", 1, KEY, CLOTHES, first=-1)
