"""Bytes that fusions read and write of large arrays, in programs like those of the TPU compiler."""

import pytest

from byov_jax.planner import cost, hlo

PROGRAM = """HloModule step, is_scheduled=true

%fused (big: f32[100,1024], i: s32[], row: f32[1,1024]) -> RESULT {
  %big = f32[100,1024]{1,0} parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %row = f32[1,1024]{1,0} parameter(2)
  %zero = s32[] constant(0)
BODY
}

ENTRY %main (big.1: f32[100,1024], i.1: s32[], row.1: f32[1,1024]) -> RESULT {
  %big.1 = f32[100,1024]{1,0SPACE} parameter(0)
  %i.1 = s32[]{:S(6)} parameter(1)
  %row.1 = f32[1,1024]{1,0} parameter(2)
  ROOT %fusion = RESULT fusion(%big.1, %i.1, %row.1), kind=kLoop, calls=%fused
}
"""
ROW, ALL = 4 * 1024, 100 * 4 * 1024
SLICE = "%slice = f32[1,1024]{1,0} dynamic-slice(%big, %i, %zero), dynamic_slice_sizes={1,1024}"
PADDED = "%pad = f32[200,1024]{1,0} pad(%big, %zero), padding=0_100x0_0"
SUM = "ROOT %sum = f32[1,1024]{1,0} add(%slice, %row)"


@pytest.mark.parametrize(
    ("result", "body", "expected"),
    [
        ("f32[1,1024]{1,0}", [SLICE, SUM], 3 * ROW),
        # A slice of twice as many rows, half of which are padding, meets half a row on average.
        ("f32[1,1024]{1,0}", [PADDED, SLICE.replace("%big", "%pad"), SUM], 2.5 * ROW),
        (
            "f32[100,1024]{1,0}",
            [
                SLICE,
                "%many = f32[100,1024]{1,0} broadcast(%slice), dimensions={0,1}",
                "ROOT %sum = f32[100,1024]{1,0} add(%big, %many)",
            ],
            2 * ALL,  # a row is needed, and all the others as well
        ),
        (
            "f32[100,1024]{1,0}",
            ["ROOT %update = f32[100,1024]{1,0} dynamic-update-slice(%big, %row, %i, %zero)"],
            2 * ROW,  # in place
        ),
    ],
)
def test_a_fusion_reads_the_part_of_an_array_that_it_uses(result, body, expected):
    assert count(result, body).bytes == expected


def test_on_chip_memory_does_not_count():
    result, body = "f32[100,1024]{1,0}", ["ROOT %twice = f32[100,1024]{1,0} add(%big, %big)"]
    assert count(result, body).bytes == 2 * ALL
    assert count(result, body, space=":T(8,128)S(1)").bytes == ALL
    assert count(result, body, space=":T(8,128)S(1)", all_memories=True).bytes > 2 * ALL  # including padding


def count(result, body, space="", **settings):
    text = PROGRAM.replace("RESULT", result).replace("SPACE", space)
    text = text.replace("BODY", "\n".join(f"  {line}" for line in body))
    return cost.count(hlo.parse(text), devices=1, **settings)


def test_negative_padding_crops_the_input_of_a_convolution():
    """The TPU compiler splits queries from queries, keys and values in this way."""
    text = """HloModule step

%fused (x: f32[1,36,8], w: f32[1,8,4]) -> f32[1,12,4] {
  %x = f32[1,36,8]{2,1,0} parameter(0)
  %w = f32[1,8,4]{2,1,0} parameter(1)
  ROOT %c = f32[1,12,4]{2,1,0} convolution(%x, %w), window={size=1 pad=-24_0}, dim_labels=b0f_0io->b0f
}

ENTRY %main (x.1: f32[1,36,8], w.1: f32[1,8,4]) -> f32[1,12,4] {
  %x.1 = f32[1,36,8]{2,1,0} parameter(0)
  %w.1 = f32[1,8,4]{2,1,0} parameter(1)
  ROOT %fusion = f32[1,12,4]{2,1,0} fusion(%x.1, %w.1), kind=kOutput, calls=%fused
}
"""
    found = cost.count(hlo.parse(text), devices=1)
    assert (found.flops, found.bytes) == (2 * 12 * 8 * 4, 4 * (12 * 8 + 8 * 4 + 12 * 4))


def test_a_collective_distributed_over_fusions_counts_once():
    config = 'backend_config={"async_collective_fusion_config":{"flag_start":"2"}}'
    gather = f"all-gather(%p), channel_id=3, replica_groups=[1,4]<=[4], dimensions={{0}}, {config}"
    text = f"""HloModule step

%start (p: f32[10]) -> (f32[40]) {{
  %p = f32[10]{{0}} parameter(0)
  %gather = f32[40]{{0}} {gather}
  ROOT %call = (f32[40]{{0}}) custom-call(%gather), custom_call_target="AsyncCollectiveStart"
}}

%go_on (p: f32[10]) -> f32[40] {{
  %p = f32[10]{{0}} parameter(0)
  ROOT %gather.1 = f32[40]{{0}} {gather}
}}

ENTRY %main (x: f32[10]) -> f32[40] {{
  %x = f32[10]{{0}} parameter(0)
  %fusion.1 = (f32[40]{{0}}) fusion(%x), kind=kCustom, calls=%start
  %fusion.2 = f32[40]{{0}} fusion(%x), kind=kCustom, calls=%go_on
  ROOT %fusion.3 = f32[40]{{0}} fusion(%x), kind=kCustom, calls=%go_on
}}
"""
    assert cost.count(hlo.parse(text), devices=4).collectives == {"all-gather": 3 * 40}
