"""What a config may not say: one line each, with the key, the value and what is allowed."""

import copy
import re

import pytest

from byov_jax.recipes import cifar10, fashion_mnist, folder, quickstart, variants
from byov_jax.training import build
from byov_jax.training import config as validate

DATA = {"size": 100_000, "image": (32, 32, 3), "classes": 10}
GOOD = {
    "steps": 100,
    "batch_size": 32,
    "data": DATA,
    "encoder": {"name": "vit", "patch": 4, "width": 8, "depth": 1, "heads": 2},
}


def changed(key, value):
    config = build.complete(copy.deepcopy(GOOD))
    *sections, name = key.split(".")
    place = config
    for section in sections:
        place = place[section]
    place[name] = value
    return config


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("beta_end", -1, "0 or more"),
        ("beta_start", -0.1, "0 or more"),
        ("beta_end", float("nan"), "a finite number"),
        ("tau", 1.5, "in [0, 1]"),
        ("tau", True, "a finite number"),
        ("steps", 0, "at least 1"),
        ("steps", "many", "an integer"),
        ("steps", 10.5, "an integer"),
        ("steps", True, "an integer"),
        ("seed", -1, "0 or more"),
        ("seed", 2**32, "below 2**32"),
        ("draws", 0, "at least 1"),
        ("log_every", 0, "at least 1"),
        ("save_every", -1, "0 or more"),
        ("log_var", 11.0, "in [-100, 10]"),
        ("draw_per_view", "yes", "True or False"),
        ("method", "simclr", "one of byol, byov, supervised, supervised_bbb"),
        ("prior", "flat", "one of standard, teacher_mean, teacher_moments"),
        ("kl_norm", "images", "one of batches, dataset, none, params"),
        ("where", 3, "a word"),
        ("optimizer.warmup", 100, "shorter than the training of 100 steps"),
        ("optimizer.warmup", -1, "0 or more"),
        ("optimizer.learning_rate", 0.0, "positive"),
        ("optimizer.name", "sgd", "one of adamw, lars"),
        ("optimizer.b2", 1.0, "in [0, 1)"),
        ("beta_steps", 101, "at most 100, the steps there are, or beta_end is never reached"),
        ("batch_size", 200_000, "at most the 100000 training images"),
        ("accumulate", 3, "a divisor of batch_size=32"),
        ("projector.widths", (), "one or more positive integers"),
        ("projector.widths", (16, -1), "one or more positive integers"),
        ("projector.widths", 16, "numbers with commas between them"),
        ("encoder.name", "mlp", "one of resnet, vit"),
        ("encoder.width", "wide", "an integer"),
        ("encoder.width", 0, "at least 1"),
        ("dtype", "int8", "one of bfloat16, float16, float32"),
        ("views.name", "strong", "one of imagenet, small_color, small_gray"),
        ("views.flip", "often", "a finite number"),
        ("views.area", 0.5, "numbers with commas between them"),
        ("data.resize", -1, "0 or more"),
    ],
)
def test_a_wrong_value_is_one_clear_line(key, value, allowed):
    with pytest.raises(ValueError, match=re.escape(f"config.{key}={value!r} must be ")) as raised:
        validate.check(changed(key, value))
    assert allowed in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("encoder.wdth", 8, "did you mean encoder.width?"),
        ("encoder.stem", "small", "there are"),  # a field of the other encoder
        ("views.contrst", 0.1, "did you mean views.contrast?"),
        ("optimizer.weight_dcay", 0.1, "did you mean optimizer.weight_decay?"),
    ],
)
def test_a_misspelt_field_of_an_open_section_gets_a_hint(key, value, hint):
    with pytest.raises(ValueError, match=re.escape(f"config has no key {key}: {hint}")):
        validate.check(changed(key, value))


def test_a_batch_must_divide_among_the_devices():
    config = build.complete(GOOD)
    validate.check(config, devices=8)
    with pytest.raises(ValueError, match=r"config\.batch_size=32 must be a multiple of the 5 devices"):
        validate.check(config, devices=5)


def test_supervised_methods_need_labels():
    config = build.complete(
        GOOD | {"method": "supervised", "data": DATA | {"classes": 0, "source": "photos"}}
    )
    with pytest.raises(ValueError, match=r"config\.method='supervised' needs labels, and photos has none"):
        validate.check(config)


def test_none_is_allowed_where_a_field_is_optional():
    validate.check(changed("encoder.mlp_width", None))
    with pytest.raises(ValueError, match=r"config\.encoder\.width=None must be an integer"):
        validate.check(changed("encoder.width", None))


VARIANTS = ["byol", "byov", "supervised", "supervised_bbb"]
VARIANTS += [f"byov-{prior}" for prior in variants.PRIORS] + [f"supervised_bbb-{w}" for w in variants.WHERE]
VARIANTS += ["byov-teacher_moments-linear_only"]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("file", [cifar10, fashion_mnist, folder, quickstart])
def test_every_config_and_variant_that_we_ship_is_right(file, name):
    config = build.complete(file.get_config(name).to_dict())
    config["data"] |= DATA
    validate.check(config)
    assert config["method"] == name.split("-")[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("simclr", "it begins with one of byol, byov"),
        ("byol-teacher_mean", "byol has neither prior nor posterior"),
        ("byov-flat", "after the method come one of standard"),
        ("byov-all-all", "after the method come one of standard"),
        ("", "it begins with one of byol"),
    ],
)
def test_an_unknown_variant_lists_what_there_is(name, message):
    with pytest.raises(ValueError, match=message):
        variants.parse(name)
