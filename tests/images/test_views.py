"""Views: one key per image, values in [0, 1], one compilation, presets and errors."""

import dataclasses
import itertools
from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from byov_jax import images
from byov_jax.images import View, Views
from byov_jax.images.views import views

OFF = View(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0, solarize=0.0)
EVERYTHING = View(size=9, flip=0.5, jitter=0.8, grayscale=0.2, blur=0.5, blur_kernel=0.5, solarize=0.5)
SMALL = images.small_color(size=9)

make_views = jax.jit(views, static_argnames="config")


def draw(transform, count: int):
    """Results of `transform(key)` for many keys."""
    results = jax.jit(jax.vmap(transform))(jax.random.split(jax.random.key(0), count))
    return jax.tree.map(np.asarray, results)


def photos(count: int, height: int = 16, width: int = 16, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def keys_of(count: int, seed: int = 0):
    return images.image_keys(jax.random.key(seed), jnp.arange(count))


def test_the_presets_are_the_published_table():
    shared = {
        "size": 224,
        "area": (0.08, 1.0),
        "aspect": (3 / 4, 4 / 3),
        "flip": 0.5,
        "jitter": 0.8,
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.2,
        "hue": 0.1,
        "grayscale": 0.2,
        "blur_sigma": (0.1, 2.0),
        "blur_kernel": 0.1,
        "solarize_threshold": 0.5,
    }
    config = images.imagenet()
    assert dataclasses.asdict(config.first) == {**shared, "blur": 1.0, "solarize": 0.0}
    assert dataclasses.asdict(config.second) == {**shared, "blur": 0.1, "solarize": 0.2}


def test_small_presets_have_no_blur_and_larger_crops():
    color, gray = images.small_color(), images.small_gray()
    assert {view.blur for view in (color.first, color.second, gray.first, gray.second)} == {0.0}
    assert (color.first.area, gray.first.area) == ((0.2, 1.0), (0.3, 1.0))
    assert (color.first.size, gray.first.size) == (32, 28)
    for view in (gray.first, gray.second):
        assert (view.saturation, view.hue, view.grayscale) == (0.0, 0.0, 0.0)
        assert view.jitter * view.brightness * view.contrast > 0.0
    assert (gray.mean, gray.std) == ((0.2860,), (0.3530,))


@pytest.mark.parametrize("channels", [1, 3])
def test_with_everything_off_a_view_is_the_image(channels):
    image = images.to_float(photos(1, channels=channels)[0])
    results = draw(lambda key: images.augment(key, image, OFF), 3)
    np.testing.assert_array_equal(results, np.stack([image] * 3))


def test_crop_and_blur_leave_a_constant_image_constant():
    view = dataclasses.replace(EVERYTHING, jitter=0.0, grayscale=0.0, solarize=0.0)
    constant = jnp.broadcast_to(jnp.array([0.0, 0.3, 1.0]), (20, 13, 3))
    results = draw(lambda key: images.augment(key, constant, view), 64)
    np.testing.assert_allclose(results, np.broadcast_to(constant[0, 0], results.shape), atol=1e-6)


def test_bytes_and_floats_give_the_same_views():
    from_bytes = make_views(keys_of(8), photos(8), config=SMALL)
    from_floats = make_views(keys_of(8), photos(8).astype(np.float32) / 255, config=SMALL)
    for a, b in zip(from_bytes, from_floats, strict=True):
        assert a.dtype == b.dtype == jnp.float32
        assert a.shape == (8, 9, 9, 3)
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_views_are_the_two_augmentations_normalised_last():
    config = Views(OFF, dataclasses.replace(OFF, flip=1.0), mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))
    x = photos(2)
    x1, x2 = jax.jit(config)(keys_of(2), x)
    expected = (x / 255 - np.array(config.mean)) / np.array(config.std)
    np.testing.assert_allclose(x1, expected, atol=1e-5)
    np.testing.assert_allclose(x2, expected[:, :, ::-1], atol=1e-5)


def test_the_same_key_gives_the_same_views_and_another_key_others():
    x = np.repeat(photos(1), 8, axis=0)
    first = make_views(keys_of(8), x, config=SMALL)
    again = make_views(keys_of(8), x, config=SMALL)
    other = make_views(keys_of(8, seed=1), x, config=SMALL)
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.abs(a - c).max() > 0.1
    draws = np.concatenate([*first, *other])
    assert all(np.abs(a - b).max() > 1e-3 for a, b in itertools.combinations(draws, 2))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_the_views_of_an_image_depend_on_its_own_key_alone(impl):
    keys = images.image_keys(jax.random.key(0, impl=impl), jnp.arange(8))
    indices = np.array([6, 1, 3, 3, 0, 0, 0, 0])  # another order and other neighbours
    before = make_views(keys, photos(8), config=SMALL)
    after = make_views(keys[indices], photos(8)[indices], config=SMALL)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a[indices], b, atol=1e-5)


def test_half_of_a_batch_has_the_same_views():
    whole = make_views(keys_of(8), photos(8), config=SMALL)
    half = make_views(images.image_keys(jax.random.key(0), jnp.arange(4, 8)), photos(8)[4:], config=SMALL)
    for a, b in zip(whole, half, strict=True):
        np.testing.assert_allclose(a[4:], b, atol=1e-5)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_batch_has_the_same_views_without_communication(axis_type):
    sharding = NamedSharding(jax.make_mesh((8,), ("data",), (axis_type,)), PartitionSpec("data"))
    keys, x = jax.device_put((keys_of(8), photos(8)), sharding)
    sharded = make_views.lower(keys, x, config=SMALL).compile()
    assert not any(
        word in sharded.as_text() for word in ("all-gather", "all-reduce", "all-to-all", "collective")
    )
    for a, b in zip(sharded(keys, x), make_views(keys_of(8), photos(8), config=SMALL), strict=True):
        assert a.sharding.is_equivalent_to(sharding, a.ndim)
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_equal_configurations_share_one_trace():
    traces = []

    @partial(jax.jit, static_argnames="config")
    def traced(keys, x, config):
        traces.append(config)
        return views(keys, x, config)

    gray = photos(2, channels=1)
    for seed in range(3):
        traced(keys_of(2, seed), gray, config=images.small_gray(size=8))
    assert len(traces) == 1


def test_disabled_transforms_are_not_compiled():
    def program(view):
        return str(
            jax.make_jaxpr(partial(images.augment, view=view))(jax.random.key(0), jnp.zeros((8, 8, 3)))
        )

    assert program(OFF).count("dot_general") == 2  # the crop
    assert program(dataclasses.replace(OFF, blur=0.1)).count("dot_general") == 4
    for primitive in ("cond[", "sort[", "rev["):
        assert primitive in program(EVERYTHING)
        assert primitive not in program(OFF)


def test_no_gradient_flows_through_a_view():
    def loss(x):
        return sum(jnp.sum(view**2) for view in views(keys_of(2), x, SMALL))

    x = images.to_float(photos(2))
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), np.zeros_like(x))


@jax.jit
def augment_any(key, image):
    """Augment with EVERYTHING, without colour transforms for one channel."""
    gray = {"saturation": 0.0, "hue": 0.0, "grayscale": 0.0} if image.shape[-1] == 1 else {}
    return images.augment(key, image, dataclasses.replace(EVERYTHING, **gray))


PIXELS = st.floats(0.0, 1.0, width=32) | st.sampled_from([0.0, 0.5, 1.0])
SHAPES = st.sampled_from([(1, 1, 3), (1, 7, 1), (12, 5, 3)])


@hypothesis.settings(deadline=None, max_examples=150, derandomize=True)
@hypothesis.given(
    image=SHAPES.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=PIXELS)),
    seed=st.integers(0, 2**31),
)
def test_any_image_gives_a_finite_view_in_range(image, seed):
    result = np.asarray(augment_any(jax.random.key(seed), image))
    assert result.shape == (9, 9, image.shape[-1])
    assert np.isfinite(result).all()
    assert result.min() >= 0.0
    assert result.max() <= 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 0),
        ("flip", 1.5),
        ("jitter", -0.1),
        ("grayscale", float("nan")),
        ("blur", 2.0),
        ("solarize", -1.0),
        ("brightness", 1.1),
        ("contrast", -0.4),
        ("saturation", 2.0),
        ("hue", 0.6),
        ("solarize_threshold", 128.0),
        ("blur_kernel", 0.0),
        ("area", (0.0, 1.0)),
        ("area", (0.5, 1.5)),
        ("area", (0.9, 0.1)),
        ("aspect", (-1.0, 1.0)),
        ("aspect", (1.0, float("inf"))),
        ("blur_sigma", (0.0, 2.0)),
        ("blur_sigma", (2.0, 0.1)),
    ],
)
def test_an_invalid_field_of_a_view_is_named(field, value):
    with pytest.raises(ValueError, match=rf"^{field}=.*; allowed: "):
        View(**{field: value})


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5, 0.5), (0.5, 0.5), r"mean=\(0.5, 0.5\).*one value each, or three each"),
        ((0.5,), (0.5, 0.5, 0.5), "one value each, or three each"),
        ((0.5,), (0.0,), r"std=\(0.0,\); allowed: positive"),
    ],
)
def test_invalid_statistics_are_an_error(mean, std, message):
    with pytest.raises(ValueError, match=message):
        Views(OFF, OFF, mean=mean, std=std)


def test_colour_transforms_of_one_channel_are_an_error_that_names_them():
    image = jnp.zeros((4, 4, 1))
    with pytest.raises(ValueError, match="set saturation, hue, grayscale to 0"):
        images.augment(jax.random.key(0), image, View())
    with pytest.raises(ValueError, match="set grayscale to 0"):
        images.augment(jax.random.key(0), image, View(jitter=0.0))


def test_other_numbers_of_channels_are_an_error():
    with pytest.raises(ValueError, match="4 channels; allowed: 1 or 3"):
        images.augment(jax.random.key(0), jnp.zeros((4, 4, 4)), OFF)


def test_crops_from_the_host_are_not_cropped_again():
    """Without colour transforms a view is its crop, flipped or not."""
    config = images.imagenet(8, jitter=0.0, grayscale=0.0, blur=0.0, solarize=0.0)
    crops = jnp.asarray(np.random.default_rng(0).integers(0, 256, (32, 2, 8, 8, 3), np.uint8))
    pair = views(images.image_keys(jax.random.key(0), jnp.arange(32)), crops, config)
    flips = []
    for view, crop in zip(pair, (crops[:, 0], crops[:, 1]), strict=True):
        plain = images.normalize(images.to_float(crop), config.mean, config.std)
        same = np.isclose(view, plain, atol=1e-5).all(axis=(1, 2, 3))
        mirrored = np.isclose(view, plain[:, :, ::-1], atol=1e-5).all(axis=(1, 2, 3))
        assert (same ^ mirrored).all()
        flips.append(mirrored)
    assert 0.2 < np.mean(flips) < 0.8
    assert (flips[0] != flips[1]).any()


def test_one_crop_serves_both_views_and_must_have_the_right_size():
    keys = images.image_keys(jax.random.key(0), jnp.arange(2))
    crop = jnp.zeros((2, 1, 8, 8, 3), jnp.uint8)
    first, second = views(keys, crop, images.imagenet(8))
    assert first.shape == second.shape == (2, 8, 8, 3)
    with pytest.raises(ValueError, match="the crops are 8 pixels wide, the view is 16"):
        views(keys, crop, images.imagenet(16))
