"""Changes that are tried when a step does not fit, and those that are compared."""

import pytest

from byov_jax.planner import changes, machine
from byov_jax.planner.chips import Chip
from byov_jax.planner.cost import Cost
from byov_jax.planner.step import Step
from byov_jax.training.config import Config

CHIP = Chip("imagined", flops=1e12, bandwidth=1e11, memory=1000, link=1e10)


class Device:
    platform = "imagined"


def machine_of(count):
    return machine.Machine("local", CHIP, [Device()] * count)


def config(mode="pmap", remat=False, **fields):
    encoder = {"name": "vit", "size": "B/16", "remat": remat}
    return Config.parse({"batch_size": 64, "encoder": encoder, "parallel": {"mode": mode}, **fields})


def compiler(needs):
    """Return a fake compiler, for which steps need the memory `needs(config, devices)`, and its configs."""
    configs = []

    def compile_step(config, machine):
        configs.append(config)
        memory = needs(config, len(machine.devices))
        return Step("byov", 64, 1, 1.0, machine, 1, 1, 1, memory, memory, Cost(1, 1, {}), 0.0)

    return compile_step, configs


def values(found):
    return [(change.values, len(change.machine.devices)) for change in found]


def test_exact_changes_come_first():
    found = values(changes.candidates(config(), machine_of(4)))
    sharded = {"parallel.mode": "sharded"}
    both = sharded | {"encoder.remat": True}
    parts = (2, 4, 8, 16)
    assert found == [
        (sharded, 4),
        (both, 4),
        *((sharded | {"accumulate": part}, 4) for part in parts),
        *((both | {"accumulate": part}, 4) for part in parts),
        *((both | {"batch_size": 64 // part, "steps": 1000 * part}, 4) for part in parts),
    ]


def test_changes_that_are_already_made_are_not_tried():
    found = values(changes.candidates(config("sharded", remat=True, accumulate=4), machine_of(4)))
    assert [(each, devices) for each, devices in found if "steps" not in each] == [
        ({"accumulate": part}, 4) for part in (8, 16)
    ]
    assert [each["batch_size"] for each, _ in found if "steps" in each] == [32, 16]


def test_the_first_change_that_fits_is_returned():
    needs = compiler(lambda config, count: 4000 // config.accumulate + 100 * (not config.encoder.remat))
    found, step = changes.smallest_that_fits(config("sharded"), machine_of(4), needs[0])
    assert found.values == {"accumulate": 8}
    assert str(found) == "--config.accumulate=8"
    assert step.fits
    assert [c.accumulate for c in needs[1]] == [1, 2, 4, 8]


def test_no_change_fits():
    assert changes.smallest_that_fits(config("sharded"), machine_of(4), compiler(lambda *_: 10**9)[0]) is None


def test_applying_a_change_does_not_modify_the_config():
    original = config()
    changed = changes.Change({"encoder.remat": True, "batch_size": 8}, machine_of(1)).apply(original)
    assert (changed.encoder.remat, changed.batch_size) == (True, 8)
    assert original == config()


def test_comparisons():
    where = machine_of(8)
    steps = {16: 4000, 32: 2000, 64: 1000, 128: 500, 256: 250}  # the same number of epochs
    assert values(changes.comparison("batch", config(), where)) == [
        ({"batch_size": size, "steps": count}, 8) for size, count in steps.items()
    ]
    parts = changes.comparison("batch", config(accumulate=4), where)
    assert [each.values["batch_size"] for each in parts] == [32, 64, 128, 256]
    assert values(changes.comparison("remat", config(), where)) == [
        ({"encoder.remat": value}, 8) for value in (True, False)
    ]
    assert values(changes.comparison("mesh", config(), where)) == [({}, count) for count in (1, 2, 4, 8)]
    with pytest.raises(ValueError, match="'resnet' cannot recompute"):
        changes.comparison("remat", config(encoder={"name": "resnet"}), where)


def test_counterparts_differ_only_in_the_method():
    for method, expected in (("byov", "byol"), ("supervised_bbb", "supervised")):
        assert changes.deterministic_counterpart(config(method=method)) == config(method=expected)
    assert changes.deterministic_counterpart(config(method="byol")) is None
