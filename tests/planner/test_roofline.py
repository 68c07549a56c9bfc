"""The roofline of a step, and the peak figures of chips."""

import pytest

from byov_jax.planner import chips
from byov_jax.planner.chips import Chip
from byov_jax.planner.cost import Cost
from byov_jax.planner.roofline import arithmetic_intensity, roofline

CHIP = Chip("imagined", flops=100.0, bandwidth=10.0, memory=1, link=2.0)


@pytest.mark.parametrize(
    ("flops", "size", "received", "seconds", "limit"),
    [(1000, 50, 4, 10.0, "compute"), (1000, 500, 4, 50.0, "memory"), (1000, 50, 40, 20.0, "links")],
)
def test_the_busiest_resource_is_the_limit(flops, size, received, seconds, limit):
    bound = roofline(Cost(flops, size, {"all-gather": received // 2, "all-reduce": received // 2}), CHIP)
    assert (bound.seconds, bound.limit) == (seconds, limit)
    assert bound == (flops / 100, size / 10, received / 2)


def test_memory_is_the_limit_below_the_ridge():
    ridge = CHIP.flops / CHIP.bandwidth
    for flops, limit in ((999, "memory"), (1001, "compute")):
        cost = Cost(flops, 100, {})
        assert (arithmetic_intensity(cost) < ridge) == (limit == "memory")
        assert roofline(cost, CHIP).limit == limit


def test_newer_chips_are_faster():
    assert chips.TPUS["v5e"][1:5] == (197e12, 819e9, int(15.75 * 2**30), 200e9)
    for older, newer in (("v5e", "v6e"), ("v5e", "v5p"), ("v5p", "tpu7x")):
        assert chips.TPUS[older].flops < chips.TPUS[newer].flops
        assert chips.TPUS[older].bandwidth < chips.TPUS[newer].bandwidth
    for name, chip in chips.TPUS.items():
        assert chip.name == name
        assert 50 < chip.flops / chip.bandwidth < 700  # FLOPs per byte at the ridge
        assert chip.link < chip.bandwidth


def test_gpus_by_device_kind():
    found = chips.gpu("NVIDIA A100-SXM4-40GB", 123)
    assert found is not None
    assert (found.bandwidth, found.memory) == (1555e9, 123)
    assert chips.gpu("NVIDIA A100-SXM4-80GB", 1).bandwidth == 2039e9
    assert chips.gpu("NVIDIA H100 80GB HBM3", 1).flops == 989e12
    assert chips.gpu("NVIDIA L40S", 1).flops == 362e12
    assert chips.gpu("NVIDIA L4", 1).flops == 121e12
    for unknown in ("GeForce 256", "NVIDIA A10G", "NVIDIA L40"):
        assert chips.gpu(unknown, 1) is None
