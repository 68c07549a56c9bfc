"""What is tried when a step does not fit, and what comparisons compare."""

import pytest

from byov_jax.planner import change, machine
from byov_jax.planner.chips import Chip
from byov_jax.planner.cost import Cost
from byov_jax.planner.step import Step
from byov_jax.training import build

CHIP = Chip("imagined", flops=1e12, bandwidth=1e11, memory=1000, link=1e10)


class Device:
    platform = "imagined"


def machine_of(count):
    return machine.Machine("local", CHIP, [Device()] * count, 1)


def config(mode="pmap", remat=False, **fields):
    encoder = {"name": "vit", "size": "B/16", "remat": remat}
    return build.complete({"batch_size": 64, "encoder": encoder, "parallel": {"mode": mode}, **fields})


def compiler(needs):
    """A compiler of steps that need as much memory as `needs` says of a config, and what it was given."""
    asked = []

    def compile_step(config, where):
        asked.append(config)
        memory = needs(config, len(where.devices))
        return Step("byov", 64, 1, 1.0, where, 1, 1, 1, memory, memory, Cost(1, 1, {}), 0.0)

    return compile_step, asked


def values(changes):
    return [(each.values, len(each.machine.devices)) for each in changes]


def test_what_leaves_the_results_alone_comes_first():
    found = values(change.remedies(config(), machine_of(4)))
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


def test_only_what_can_still_be_changed_is_tried():
    found = values(change.remedies(config("sharded", remat=True, accumulate=4), machine_of(4)))
    assert [(each, devices) for each, devices in found if "steps" not in each] == [
        ({"accumulate": part}, 4) for part in (8, 16)
    ]
    assert [each["batch_size"] for each, _ in found if "steps" in each] == [32, 16]


def test_the_first_change_that_fits_is_the_answer():
    needs = compiler(
        lambda config, count: 4000 // config["accumulate"] + 100 * (not config["encoder"]["remat"])
    )
    found, step = change.remedy(config("sharded"), machine_of(4), needs[0])
    assert found.values == {"accumulate": 8}
    assert str(found) == "--config.accumulate=8"
    assert step.fits
    assert [c["accumulate"] for c in needs[1]] == [1, 2, 4, 8]


def test_nothing_may_fit():
    assert change.remedy(config("sharded"), machine_of(4), compiler(lambda *_: 10**9)[0]) is None


def test_a_change_leaves_the_config_alone():
    original = config()
    changed = change.Change({"encoder.remat": True, "batch_size": 8}, machine_of(1)).made(original)
    assert (changed["encoder"]["remat"], changed["batch_size"]) == (True, 8)
    assert original == config()


def test_comparisons():
    where = machine_of(8)
    steps = {16: 4000, 32: 2000, 64: 1000, 128: 500, 256: 250}  # as many epochs
    assert values(change.variants("batch", config(), where)) == [
        ({"batch_size": size, "steps": count}, 8) for size, count in steps.items()
    ]
    parts = change.variants("batch", config(accumulate=4), where)
    assert [each.values["batch_size"] for each in parts] == [32, 64, 128, 256]
    assert values(change.variants("remat", config(), where)) == [
        ({"encoder.remat": value}, 8) for value in (True, False)
    ]
    assert values(change.variants("mesh", config(), where)) == [({}, count) for count in (1, 2, 4, 8)]
    with pytest.raises(ValueError, match="'resnet' cannot recompute"):
        change.variants("remat", config(encoder={"name": "resnet"}), where)


def test_counterparts_differ_in_the_method_alone():
    for method, expected in (("byov", "byol"), ("supervised_bbb", "supervised")):
        assert change.counterpart(config(method=method)) == config(method=expected)
    assert change.counterpart(config(method="byol")) is None
