"""What a config may not say: one line each, with the key, the value and what is allowed."""

import copy
import dataclasses
import inspect
import json
import re
import typing

import pytest

from byov_jax import distributed, images, networks
from byov_jax.bayes import temperature
from byov_jax.errors import ConfigError
from byov_jax.methods import TRAITS, optimizers
from byov_jax.recipes import cifar10, fashion_mnist, folder, quickstart, variants
from byov_jax.training import build, schema
from byov_jax.training.config import AdamW, Config, Head, Lars, Optimizer, Parallel, ResNet, Views, ViT

DATA = {"size": 100_000, "image": (32, 32, 3), "classes": 10}
GOOD = {
    "steps": 100,
    "batch_size": 32,
    "data": DATA,
    "encoder": {"name": "vit", "patch": 4, "width": 8, "depth": 1, "heads": 2},
}


def nested(key, value):
    """`{"a": {"b": value}}` for the key "a.b"."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def changed(key, value):
    """The good config with another value, checked as before a training."""
    values = schema.merged(copy.deepcopy(GOOD), nested(key, value))
    Config.parse(values).check_data()


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
        ("seed", -1, "in [0, 2**32)"),
        ("seed", 2**32, "in [0, 2**32)"),
        ("draws", 0, "at least 1"),
        ("log_every", 0, "at least 1"),
        ("save_every", -1, "0 or more"),
        ("log_var", 11.0, "in [-100, 0]"),
        ("draw_per_view", "yes", "True or False"),
        ("method", "simclr", "one of byol, byov, supervised, supervised_bbb"),
        ("prior", "flat", "one of standard, teacher_mean, teacher_moments"),
        ("kl_norm", "images", "one of batches, dataset, none, params"),
        ("where", 3, "a string"),
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
        ("projector.widths", 16, "numbers separated by commas"),
        ("encoder.name", "mlp", "one of resnet, vit"),
        ("encoder.width", "wide", "an integer"),
        ("encoder.width", 0, "at least 1"),
        ("dtype", "int8", "one of bfloat16, float32"),
        ("views.name", "strong", "one of imagenet, small_color, small_gray"),
        ("views.flip", "often", "a finite number"),
        ("views.area", 0.5, "numbers separated by commas"),
        ("data.resize", -1, "0 or more"),
    ],
)
def test_a_wrong_value_is_one_clear_line(key, value, allowed):
    with pytest.raises(ValueError, match=re.escape(f"config.{key}={value!r} must be ")) as raised:
        changed(key, value)
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
        changed(key, value)


def test_a_batch_must_divide_among_the_devices():
    config = Config.parse(GOOD)
    config.check_data(devices=8)
    with pytest.raises(ValueError, match=r"config\.batch_size=32 must be a multiple of the 5 devices"):
        config.check_data(devices=5)


def test_supervised_methods_need_labels():
    config = Config.parse(GOOD | {"method": "supervised", "data": DATA | {"classes": 0, "source": "photos"}})
    with pytest.raises(ValueError, match=r"config\.method='supervised' needs labels, and photos has none"):
        config.check_data()


def test_none_is_allowed_where_a_field_is_optional():
    changed("encoder.mlp_width", None)
    with pytest.raises(ValueError, match=r"config\.encoder\.width=None must be an integer"):
        changed("encoder.width", None)


VARIANTS = ["byol", "byov", "supervised", "supervised_bbb"]
VARIANTS += [f"byov-{prior}" for prior in variants.PRIORS] + [f"supervised_bbb-{w}" for w in variants.WHERE]
VARIANTS += ["byov-teacher_moments-linear_only"]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("file", [cifar10, fashion_mnist, folder, quickstart])
def test_every_config_and_variant_that_we_ship_is_right(file, name):
    config = Config.parse(file.get_config(name)).updated({"data": DATA})
    config.check_data()
    assert config.method == name.split("-")[0]


@pytest.mark.parametrize(
    ("name", "decays"),
    [("byol", True), ("byol-no_decay", False), ("byov", False), ("byov-teacher_mean-decay", True)],
)
@pytest.mark.parametrize("file", [cifar10, fashion_mnist, folder, quickstart])
def test_weights_decay_without_a_posterior_unless_the_variant_says_otherwise(file, name, decays):
    assert (file.get_config(name).optimizer.weight_decay > 0.0) is decays


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


def choices(section, name):
    return set(typing.get_args(section.model_fields[name].annotation))


def test_the_choices_are_those_of_the_rooms_that_know_them():
    assert choices(Config, "method") == set(TRAITS)
    assert choices(Config, "prior") == set(build.PRIORS)
    for name in choices(Config, "kl_norm"):
        assert temperature.normalizer(name, size=1, dataset_size=1, batch_size=1) == 1
    assert choices(Parallel, "mode") == set(distributed.MODES)
    assert choices(Views, "name") == set(build.VIEWS)


@pytest.mark.parametrize(
    ("section", "target", "others"),
    [
        (ViT, networks.ViT, {"size"}),
        (ResNet, networks.ResNet, {"depth"}),
        (Head, networks.MLP, set()),
        (Views, images.View, set()),
    ],
)
def test_a_section_has_the_fields_of_what_it_names(section, target, others):
    fields = {field.name for field in dataclasses.fields(target)} - {"parent", "name", "dtype", "axis_name"}
    assert set(section.model_fields) - {"name"} == fields | others


@pytest.mark.parametrize(("section", "function"), [(AdamW, optimizers.adamw), (Lars, optimizers.lars)])
def test_an_optimizer_has_the_arguments_of_its_function(section, function):
    assert set(section.model_fields) - {"name", "warmup"} == set(inspect.signature(function).parameters)
    assert issubclass(section, Optimizer)


def test_every_key_says_what_it_means_and_what_is_allowed():
    keys = schema.keys(Config)
    assert len(keys) == len({key.name for key in keys}) > 80
    for key in keys:
        assert key.meaning, key.name
        assert key.allowed, key.name


def test_a_config_is_frozen_and_can_be_a_key():
    config = Config.parse(GOOD)
    with pytest.raises(ValueError, match="frozen"):
        config.steps = 3
    assert {config: 1}[Config.parse(GOOD)] == 1


def test_an_update_is_checked_and_leaves_the_original():
    config = Config.parse(GOOD)
    assert config.updated({"encoder": {"depth": 2}}).encoder.to_dict() == GOOD["encoder"] | {"depth": 2}
    assert config == Config.parse(GOOD)
    with pytest.raises(ConfigError, match=r"config\.steps=0 must be at least 1"):
        config.updated({"steps": 0})


def test_the_config_of_an_older_run_still_loads():
    """As it was written when configs were plain dicts: complete, with JSON's lists."""
    old = json.loads(json.dumps(Config.parse(GOOD).to_dict()))
    assert Config.parse(old) == Config.parse(GOOD)
