"""The random transforms of a view have the distributions of torchvision's crop and of BYOL's table."""

import dataclasses
import itertools

import dm_pix
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from byov_jax import images
from byov_jax.images import View, ops
from byov_jax.images.views import color_jitter, gaussian_blur, random_box, uniform_draws

OFF = View(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0, solarize=0.0)
P_VALUE = 1e-3  # seeds are fixed, so tests do not fail by chance


def draw(transform, count: int):
    """Results of `transform(key)` for many keys."""
    results = jax.jit(jax.vmap(transform))(jax.random.split(jax.random.key(0), count))
    return jax.tree.map(np.asarray, results)


def torchvision_box(rng, height, width, area, aspect):
    """The rejection sampler of torchvision.transforms.RandomResizedCrop.get_params, without its fallback."""
    while True:
        pixels = height * width * rng.uniform(*area)
        ratio = np.exp(rng.uniform(*np.log(aspect)))
        box_width, box_height = round(np.sqrt(pixels * ratio)), round(np.sqrt(pixels / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = rng.integers(0, height - box_height + 1), rng.integers(0, width - box_width + 1)
            return top, left, box_height, box_width


@pytest.mark.parametrize(("height", "width"), [(224, 224), (28, 28), (120, 200)])
def test_boxes_have_torchvisions_distribution(height, width):
    view = View()
    box = draw(lambda key: random_box(uniform_draws(key), height, width, view), 4000)
    rng = np.random.default_rng(0)
    reference = np.array([torchvision_box(rng, height, width, view.area, view.aspect) for _ in range(4000)]).T
    top, left, box_height, box_width = reference
    assert (box.top >= 0).all()
    assert (box.left >= 0).all()
    assert (box.top + box.height <= height).all()
    assert (box.left + box.width <= width).all()
    for ours, theirs in (
        (box.height * box.width, box_height * box_width),
        (box.width / box.height, box_width / box_height),
        (box.top, top),
        (box.left, left),
        (box.left + box.width, left + box_width),
    ):
        assert stats.ks_2samp(ours, theirs, method="asymp").pvalue > P_VALUE


def test_positions_are_uniform():
    view = View(area=(0.25, 0.25), aspect=(1.0, 1.0))
    box = draw(lambda key: random_box(uniform_draws(key), 8, 8, view), 10_000)
    assert set(box.height) == set(box.width) == {4}
    counts, _, _ = np.histogram2d(box.top, box.left, bins=[np.arange(6)] * 2)
    assert stats.chisquare(counts.ravel()).pvalue > P_VALUE


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (10, 100, (0, 43, 10, 13)),
        (100, 10, (43, 0, 13, 10)),
        (99, 99, (0, 0, 99, 99)),
        (1, 50, (0, 24, 1, 1)),
    ],
)
def test_without_a_fitting_box_the_largest_central_one_is_used(height, width, expected):
    view = View(area=(1.0, 1.0))
    box = draw(lambda key: random_box(uniform_draws(key), height, width, view), 300)
    np.testing.assert_array_equal(np.stack(box, axis=1), np.broadcast_to(expected, (300, 4)))


def test_flip_grayscale_blur_and_solarize_happen_independently_with_their_probabilities():
    rng = np.random.default_rng(0)
    image = rng.random((6, 6, 3), dtype=np.float32)
    probabilities = {"flip": 0.5, "grayscale": 0.2, "blur": 0.1, "solarize": 0.2}
    view = dataclasses.replace(OFF, **probabilities, blur_sigma=(1.0, 1.0), blur_kernel=0.5)
    results = draw(lambda key: images.augment(key, jnp.asarray(image), view), 4000)

    offset = np.arange(6)[:, None] - np.arange(6)
    blur = np.exp(-(offset**2) / 2) * (abs(offset) <= 1)
    blur /= blur.sum(1, keepdims=True)
    counts, expected = [], []
    for flipped, gray, blurred, solarised in itertools.product((False, True), repeat=4):
        x = image[:, ::-1] if flipped else image
        x = np.repeat(x @ [[0.2989], [0.587], [0.114]], 3, axis=2) if gray else x
        x = np.einsum("oh,hwc,pw->opc", blur, x, blur) if blurred else x
        x = np.where(x >= 0.5, 1.0 - x, x) if solarised else x
        counts.append(np.sum(np.abs(results - x).max(axis=(1, 2, 3)) < 1e-5))
        applied = zip(probabilities.values(), (flipped, gray, blurred, solarised), strict=True)
        expected.append(4000 * np.prod([p if yes else 1 - p for p, yes in applied]))
    assert sum(counts) == 4000, "every result is one of the 16 combinations"
    assert stats.chisquare(counts, expected).pvalue > P_VALUE


def test_jitter_happens_with_its_probability():
    image = jnp.full((2, 2, 3), 0.5)
    view = dataclasses.replace(OFF, jitter=0.8, contrast=0.0, saturation=0.0, hue=0.0)
    changed = np.any(draw(lambda key: images.augment(key, image, view), 4000) != 0.5, axis=(1, 2, 3))
    assert stats.binomtest(int(changed.sum()), 4000, 0.8).pvalue > P_VALUE


STILL = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


@pytest.mark.parametrize(
    ("name", "low", "high", "measure"),
    [
        ("brightness", -0.4, 0.4, lambda x: x[:, 0, 0, 0] - 0.4),
        ("contrast", 0.6, 1.4, lambda x: (x[:, 0, 0, 1] - x[:, 0, 0, 0]) / 0.2),
        ("saturation", 0.8, 1.2, lambda x: (x[:, 0, 0, 0] - x[:, 1, 0, 0]) / 0.2),
        ("hue", -0.1, 0.1, lambda x: (dm_pix.rgb_to_hsv(x, channel_axis=1)[:, 0, 0, 0] + 0.5) % 1.0 - 0.5),
    ],
)
def test_jitter_amounts_are_uniform_in_their_range(name, low, high, measure):
    planes = jnp.array([[[0.4, 0.6]], [[0.2, 0.4]], [[0.2, 0.4]]])  # two red pixels, each plane rising by .2
    view = View(**{**STILL, name: getattr(View(), name)})
    amounts = np.asarray(measure(draw(lambda key: color_jitter(uniform_draws(key), planes, view), 3000)))
    assert amounts.min() >= low - 1e-5
    assert amounts.max() <= high + 1e-5
    assert stats.kstest(amounts, stats.uniform(low, high - low).cdf).pvalue > P_VALUE


def test_every_order_of_the_jitter_is_equally_likely(monkeypatch):
    for digit, name in enumerate(("brightness", "contrast", "saturation", "hue"), start=1):
        monkeypatch.setattr(ops, name, lambda x, amount, digit=digit: 10.0 * x + digit)
    digits = draw(lambda key: color_jitter(uniform_draws(key), jnp.zeros((3, 1, 1)), View()), 6000)
    orders, counts = np.unique(digits[:, 0, 0, 0], return_counts=True)
    assert {str(int(order)) for order in orders} == {"".join(p) for p in itertools.permutations("1234")}
    assert stats.chisquare(counts).pvalue > P_VALUE


def test_blur_sigma_is_uniform_and_the_kernel_has_23_taps_at_224_pixels():
    view = View(blur_sigma=(0.5, 2.0))
    impulse = jnp.zeros((1, 224, 1)).at[0, 112, 0].set(1.0)
    results = draw(lambda key: gaussian_blur(uniform_draws(key), impulse, view)[0, 100:125, 0], 2000)
    sigma = np.sqrt(-0.5 / np.log(results[:, 13] / results[:, 12]))
    assert stats.kstest(sigma, stats.uniform(0.5, 1.5).cdf).pvalue > P_VALUE
    assert np.count_nonzero(results[sigma.argmax()]) == 23
    np.testing.assert_array_equal(results[:, [0, 24]], 0.0)
