"""Bytes between devices: of programs that exchange a known amount, and in every notation of groups."""

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from planner.programs import DEVICES, array, count

from byov_jax.planner import collectives, cost, hlo

OTHERS = DEVICES - 1
SIZE = 4 * 64 * 32


def replicated(x):
    return jax.lax.with_sharding_constraint(x, NamedSharding(x_mesh(), PartitionSpec()))


def x_mesh():
    return array(8, spec=("data",)).sharding.mesh


def test_gathering_receives_the_parts_of_the_others():
    found = count(lambda x: replicated(x * 2), array(64, 32, spec=("data",)), devices=DEVICES)
    assert found.collectives == {"all-gather": SIZE * OTHERS // DEVICES}


def test_a_sum_over_devices_travels_twice():
    found = count(
        lambda a, b: replicated(a @ b),
        array(64, 128, spec=(None, "data")),
        array(128, 32, spec=("data",)),
        devices=DEVICES,
    )
    assert found.collectives == {"all-reduce": 2 * SIZE * OTHERS // DEVICES}
    assert found.flops == 2 * 64 * 128 * 32 // DEVICES


def test_an_exchange_in_a_scan_counts_as_often_as_it_runs():
    def layers(w, x):
        return jax.lax.scan(lambda x, w: (replicated(x @ w), None), x, w)[0]

    weights = array(5, 64, 64, spec=(None, "data"))
    found = count(layers, weights, array(32, 64, spec=()), devices=DEVICES)
    once = count(layers, weights, array(32, 64, spec=()), devices=DEVICES, once=True)
    assert sum(found.collectives.values()) == 5 * sum(once.collectives.values()) > 0


PROGRAM = """HloModule step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %add = f32[]{:T(128)} add(%a, %b)
}

ENTRY %main (x: f32[1024]) -> f32[1024] {
  %x = f32[1024]{0:T(1024)} parameter(0)
  ROOT %exchange = f32[1024]{0:T(1024)} KIND(%x), channel_id=1, replica_groups=GROUPS, to_apply=%sum
}
"""


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{}", 16),
        ("{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", 4),
        ("[2,8]<=[16]", 8),
        ("[8,2]<=[2,8]T(1,0)", 2),
        ("mesh['x'=16] {'x'}", 16),
        ("mesh['x'=4,'y'=4] {'y'}", 4),
        ("mesh['x'=4,'y'=4] {'x','y'}", 16),
        ("mesh['x'=16] {'x':(1)8}", 8),
    ],
)
@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all-reduce", lambda n: 2 * (n - 1) / n),
        ("all-gather", lambda n: n - 1),
        ("reduce-scatter", lambda n: (n - 1) / n),
        ("all-to-all", lambda n: (n - 1) / n),
        ("collective-permute", lambda n: 1),
    ],
)
def test_groups_in_every_notation(kind, factor, groups, size):
    program = hlo.parse(PROGRAM.replace("KIND", kind).replace("GROUPS", groups))
    assert cost.count(program, devices=16).collectives == {kind: round(4096 * factor(size))}


def test_every_kind_is_counted_when_it_starts_and_not_when_it_ends():
    for kind in collectives.KINDS:
        for ending, counted in (("-start", True), ("-done", False)):
            program = hlo.parse(PROGRAM.replace("KIND", kind + ending).replace("GROUPS", "{}"))
            assert (kind in cost.count(program, devices=16).collectives) == counted
