"""FLOPs of library calls, and bytes that collectives receive in every notation of replica groups."""

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from planner.programs import DEVICES, array, count

from byov_jax.planner import cost, hlo, operations

LIBRARY_CALL = """HloModule step

ENTRY %main (a: SHAPE_A, b: SHAPE_B) -> RESULT {
  %a = SHAPE_A parameter(0)
  %b = SHAPE_B parameter(1)
  %call = (RESULT, u8[100]{0}) custom-call(%a, %b), ATTRIBUTES, metadata={op_name="jit(f)/conv"}
  ROOT %out = RESULT get-tuple-element(%call), index=0
}
"""
IMAGES, KERNEL, RESULT = "f32[2,9,9,3]{3,2,1,0}", "f32[3,3,3,4]{3,2,1,0}", "f32[2,7,7,4]{3,2,1,0}"
GEMM = (
    'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
)


@pytest.mark.parametrize(
    ("a", "b", "result", "attributes", "flops"),
    [
        ("f32[5,6]{1,0}", "f32[6,7]{1,0}", "f32[5,7]{1,0}", GEMM, 2 * 5 * 6 * 7),
        (IMAGES, KERNEL, RESULT, "Forward", 2 * 2 * 7 * 7 * 9 * 3 * 4),
        (RESULT, KERNEL, IMAGES, "BackwardInput", 2 * 2 * 7 * 7 * 9 * 3 * 4),
        (IMAGES, RESULT, KERNEL, "BackwardFilter", 2 * 2 * 7 * 7 * 9 * 3 * 4),
        ("f32[5]{0}", "f32[5]{0}", "f32[5]{0}", 'custom_call_target="other"', 0),
    ],
)
def test_flops_of_library_calls(a, b, result, attributes, flops):
    if "=" not in attributes:
        attributes = (
            f'window={{size=3x3}}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$conv{attributes}"'
        )
    text = LIBRARY_CALL.replace("SHAPE_A", a).replace("SHAPE_B", b).replace("RESULT", result)
    program = hlo.parse(text.replace("ATTRIBUTES", attributes))
    assert cost.count(program, devices=1).flops == flops


OTHERS = DEVICES - 1
SIZE = 4 * 64 * 32


def replicated(x):
    mesh = array(8, spec=("data",)).sharding.mesh
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))


def test_an_all_gather_receives_the_shards_of_the_others():
    found = count(lambda x: replicated(x * 2), array(64, 32, spec=("data",)), devices=DEVICES)
    assert found.collectives == {"all-gather": SIZE * OTHERS // DEVICES}


def test_an_all_reduce_receives_twice():
    found = count(
        lambda a, b: replicated(a @ b),
        array(64, 128, spec=(None, "data")),
        array(128, 32, spec=("data",)),
        devices=DEVICES,
    )
    assert found.collectives == {"all-reduce": 2 * SIZE * OTHERS // DEVICES}
    assert found.flops == 2 * 64 * 128 * 32 // DEVICES


def test_a_collective_in_a_scan_counts_once_per_trip():
    def layers(w, x):
        return jax.lax.scan(lambda x, w: (replicated(x @ w), None), x, w)[0]

    weights = array(5, 64, 64, spec=(None, "data"))
    found = count(layers, weights, array(32, 64, spec=()), devices=DEVICES)
    once = count(layers, weights, array(32, 64, spec=()), devices=DEVICES, loops_once=True)
    assert sum(found.collectives.values()) == 5 * sum(once.collectives.values()) > 0


COLLECTIVE = """HloModule step, is_scheduled=true

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
    program = hlo.parse(COLLECTIVE.replace("KIND", kind).replace("GROUPS", groups))
    assert cost.count(program, devices=16).collectives == {kind: round(4096 * factor(size))}


def test_asynchronous_collectives_count_at_their_start():
    for kind in operations.COLLECTIVES:
        for ending, counted in (("-start", True), ("-done", False)):
            program = hlo.parse(COLLECTIVE.replace("KIND", kind + ending).replace("GROUPS", "{}"))
            assert (kind in cost.count(program, devices=16).collectives) == counted
