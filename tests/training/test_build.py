"""From a config to a method: defaults, what each method is built of, and what a config may not say."""

import copy
import dataclasses
import json
import re

import pytest

from byov_jax import images, networks
from byov_jax.errors import ConfigError
from byov_jax.methods import TRAITS, Method
from byov_jax.recipes import quickstart
from byov_jax.training import build
from byov_jax.training.config import Config

VIT = {"name": "vit", "patch": 4, "width": 8, "depth": 1, "heads": 2, "pool": "mean", "positions": "sincos"}
SMALL = {
    "steps": 5,
    "data": {"size": 64, "image": (28, 28, 1), "classes": 3},
    "encoder": VIT,
    "projector": {"widths": (8, 8)},
    "predictor": {"widths": (8, 8)},
}


def small(**changes):
    return Config.parse(SMALL | changes)


def method_of(config):
    return build.method(config, build.network(config))


def test_nothing_given_is_the_defaults():
    assert Config.parse({}) == Config()


def test_parse_keeps_what_is_given_and_fills_in_the_rest():
    given = {"steps": 7, "optimizer": {"name": "lars", "momentum": 0.8}, "data": {"size": 3}}
    found, defaults = Config.parse(given).to_dict(), Config().to_dict()
    assert found["steps"] == 7
    assert found["optimizer"] == defaults["optimizer"] | {"name": "lars", "momentum": 0.8}
    assert found["data"] == defaults["data"] | {"size": 3}
    rest = defaults.keys() - given.keys()
    assert {key: found[key] for key in rest} == {key: defaults[key] for key in rest}


def test_the_dict_of_a_config_is_the_callers_to_change():
    given = copy.deepcopy(SMALL)
    for values in ({}, given):
        found = Config.parse(values).to_dict()
        for section in ("data", "encoder", "projector", "optimizer"):
            found[section].clear()
        assert Config.parse(values).to_dict() != found
    assert given == SMALL


@pytest.mark.parametrize(
    "config", [{}, SMALL, {"views": {"size": 8}}, {"encoder": {"name": "resnet", "stages": (1, 2)}}]
)
def test_json_and_back_is_the_same_config(config):
    config = Config.parse(config)
    stored = json.loads(json.dumps(config.to_dict()))
    assert Config.parse(stored) == config
    assert stored != config.to_dict()  # JSON has no tuples, which networks need


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"step": 3}, "config has no key step: did you mean steps?"),
        ({"optimiser": {}}, "config has no key optimiser: did you mean optimizer?"),
        ({"data": {"sizes": 3}}, "config has no key data.sizes: did you mean data.size?"),
        ({"projector": {"width": (8,)}}, "config has no key projector.width: did you mean projector.widths?"),
        ({"projector": {"xyz": 1}}, "config has no key projector.xyz: there are norm, output_bias, widths"),
    ],
)
def test_a_key_that_does_not_exist_is_refused(config, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Config.parse(config)


@pytest.mark.parametrize("value", ["vit", 3, None, ["vit"]])
def test_a_section_must_be_a_section(value):
    shown = tuple(value) if isinstance(value, list) else value
    message = f"config.encoder={shown!r} must be a section with the keys name, size, patch"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        Config.parse({"encoder": value})


@pytest.mark.parametrize("name", ["byol", "byov"])
def test_a_bootstrap_network_is_a_student(name):
    fields = {key: value for key, value in VIT.items() if key != "name"}
    heads = (networks.MLP((8, 8)), networks.MLP((16, 4), norm="layer"))
    config = small(method=name, predictor={"widths": (16, 4), "norm": "layer"})
    assert build.network(config) == networks.Student(networks.ViT(**fields), *heads)
    assert isinstance(method_of(config), Method)


@pytest.mark.parametrize("name", ["supervised", "supervised_bbb"])
def test_a_supervised_network_is_a_classifier(name):
    config = small(method=name, encoder={"name": "resnet", "depth": 18, "stem": "small"})
    expected = networks.Classifier(networks.resnet(18, stem="small"), classes=3)
    assert build.network(config) == expected
    assert isinstance(method_of(config), Method)


def test_every_method_is_tested():
    assert set(TRAITS) == {"byol", "byov", "supervised", "supervised_bbb"}


def test_a_vit_may_be_given_by_its_size():
    config = small(encoder={"name": "vit", "size": "Ti/4", "drop_path": 0.1})
    assert build.network(config).encoder == networks.vit("Ti/4", drop_path=0.1)


def test_a_network_from_json_is_the_same_network():
    """Its equality and its hash decide whether compiled programs are shared."""
    stored = Config.parse(json.loads(json.dumps(small().to_dict())))
    assert build.network(stored) == build.network(small())
    assert hash(build.network(stored)) == hash(build.network(small()))


@pytest.mark.parametrize("name", ["imagenet", "small_color", "small_gray"])
def test_views_by_name(name):
    assert build.views(small(views={"name": name})) == getattr(images, name)()
    assert build.views(small(views={"name": name, "size": 8})) == getattr(images, name)(size=8)
    changed = build.views(small(views={"name": name, "flip": 0.0, "area": [0.5, 1.0]}))
    preset = getattr(images, name)()
    assert changed == dataclasses.replace(
        preset,
        first=dataclasses.replace(preset.first, flip=0.0, area=(0.5, 1.0)),
        second=dataclasses.replace(preset.second, flip=0.0, area=(0.5, 1.0)),
    )


@pytest.mark.parametrize("prior", list(build.PRIORS))
@pytest.mark.parametrize("optimizer", list(build.OPTIMIZERS))
def test_every_prior_and_optimizer_builds(prior, optimizer):
    config = small(prior=prior, optimizer={"name": optimizer, "warmup": 2, "weight_decay": 0.1})
    assert isinstance(method_of(config), Method)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "simclr"},
            "config.method='simclr' must be one of byol, byov, supervised, supervised_bbb",
        ),
        (
            {"prior": "flat"},
            "config.prior='flat' must be one of standard, teacher_mean, teacher_moments",
        ),
        (
            {"prior": {"name": "flat"}},
            "config.prior={'name': 'flat'} must be one of standard, teacher_mean, teacher_moments",
        ),
        (
            {"views": {"name": "medium"}},
            "config.views.name='medium' must be one of imagenet, small_color, small_gray",
        ),
        ({"encoder": VIT | {"name": "cnn"}}, "config.encoder.name='cnn' must be one of resnet, vit"),
        ({"optimizer": {"name": "sgd"}}, "config.optimizer.name='sgd' must be one of adamw, lars"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        method_of(small(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": VIT | {"widht": 8}}, r"config has no key encoder\.widht: did you mean encoder\.width\?"),
        ({"encoder": {"name": "vit", "patch": 4}}, r"config\.encoder: .*missing .*'width'"),
        (
            {"encoder": VIT | {"pool": "max"}},
            r"config\.encoder\.pool='max' must be one of concat, mean, token",
        ),
        ({"encoder": {"name": "vit", "size": "XL/4"}}, r"config\.encoder: unknown ViT 'XL/4'"),
        ({"encoder": {"name": "resnet", "depth": 19}}, r"config\.encoder: unknown ResNet depth 19"),
        (
            {"encoder": {"name": "resnet", "depth": 18, "widht": 8}},
            r"config has no key encoder\.widht: did you mean encoder\.width\?",
        ),
        (
            {"projector": {"widths": ()}},
            r"config\.projector\.widths=\(\) must be one or more positive integers",
        ),
        (
            {"predictor": {"norm": "instance"}},
            r"config\.predictor\.norm='instance' must be one of batch, layer, none",
        ),
        ({"views": {"size": 0}}, r"config\.views\.size=0 must be at least 1"),
        ({"views": {"flop": 0.5}}, r"config has no key views\.flop: did you mean views\.flip\?"),
        ({"optimizer": {"momentum": 0.9}}, r"config has no key optimizer\.momentum: there are b1, b2"),
        ({"optimizer": {"weight_decay": -1.0}}, r"config\.optimizer\.weight_decay=-1.0 must be 0 or more"),
    ],
)
def test_a_wrong_field_is_refused_with_its_section(changes, message):
    with pytest.raises(ValueError, match=message):
        method_of(small(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": {"warmup": 5}},
            r"config\.optimizer\.warmup=5 must be shorter than the training of 5 steps",
        ),
        (
            {"optimizer": {"warmup": 500}},
            r"config\.optimizer\.warmup=500 must be shorter than the training of 5 steps",
        ),
        ({"tau": 1.5}, r"config\.tau=1\.5 must be in \[0, 1\]"),
        ({"kl_norm": "sum"}, "config.kl_norm='sum' must be one of batches, dataset, none, params"),
        ({"data": {"size": 0}}, "dataset_size=0 must be at least 1"),
        ({"draws": 0}, r"config\.draws=0 must be at least 1"),
    ],
)
def test_a_training_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        method_of(small(**changes))


@pytest.mark.parametrize("variant", TRAITS)
def test_every_variant_of_the_quickstart_builds(variant):
    config = Config.parse(quickstart.get_config(variant)).updated({"data": SMALL["data"]})
    assert config.method == variant
    assert isinstance(method_of(config), Method)
    kind = networks.Classifier if variant.startswith("supervised") else networks.Student
    assert isinstance(build.network(config), kind)
