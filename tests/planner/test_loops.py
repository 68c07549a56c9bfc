"""Trip counts of loops in programs like those of the TPU compiler, which does not state them."""

import pytest

from byov_jax.planner import cost, hlo

LOOP = """HloModule step, is_scheduled=true

%next (p: s32[], q: s32[]) -> s32[] {
  %p = s32[]{:T(128)} parameter(0)
  %q = s32[]{:T(128)} parameter(1)
  ROOT %sum = s32[]{:T(128)} add(%p, %q)
}

%condition (state: (s32[], f32[8,8], s32[])) -> pred[] {
  %state = (s32[]{:T(128)}, f32[8,8]{1,0}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %limit = s32[]{:T(128)} LIMIT
  ROOT %compare = pred[]{:T(512)} compare(%i, %limit), direction=DIRECTION, metadata={op_name="jit(f)/while"}
}

%body (state.1: (s32[], f32[8,8], s32[])) -> (s32[], f32[8,8], s32[]) {
  %state.1 = (s32[]{:T(128)}, f32[8,8]{1,0}, s32[]{:T(128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %x = f32[8,8]{1,0} get-tuple-element(%state.1), index=1
  %limit.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=2
  %by = s32[]{:T(128)} constant(STEP)
  %next.1 = s32[]{:T(128)} fusion(%i.1, %by), kind=kLoop, calls=%next
  %dot = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %tuple = (s32[]{:T(128)}, f32[8,8]{1,0}, s32[]{:T(128)}) tuple(%next.1, %dot, /*index=2*/%limit.1)
}

ENTRY %main (x.1: f32[8,8]) -> f32[8,8] {
  %x.1 = f32[8,8]{1,0} parameter(0)
  %first = s32[]{:T(128)} constant(FIRST)
  %copy = s32[]{:T(128)} copy(%first)
  %twelve = s32[]{:T(128)} constant(12)
  %tuple.1 = (s32[]{:T(128)}, f32[8,8]{1,0}, s32[]{:T(128)}) tuple(%copy, %x.1, /*index=2*/%twelve)
  %while = (s32[], f32[8,8]{1,0}, s32[]) while(%tuple.1), condition=%condition, body=%bodySTATED
  ROOT %result = f32[8,8]{1,0} get-tuple-element(%while), index=1
}
"""
STATED = ', backend_config={"known_trip_count":{"n":"7"}}'


@pytest.mark.parametrize(
    ("first", "limit", "step", "direction", "stated", "trips"),
    [
        (0, "constant(12)", 1, "LT", "", 12),
        (0, "constant(8)", 2, "LT", "", 4),  # unrolled by the compiler
        (1, "constant(8)", 2, "LT", "", 4),
        (0, "constant(12)", 1, "LE", "", 13),
        (5, "constant(0)", -1, "GT", "", 5),
        (0, "constant(9)", 3, "NE", "", 3),
        (0, "get-tuple-element(%state), index=2", 1, "LT", "", 12),  # a constant in the state
        (3, "constant(3)", 1, "LT", "", 0),
        (0, "constant(12)", 1, "LT", STATED, 7),
    ],
)
def test_trips(first, limit, step, direction, stated, trips):
    text = LOOP.replace("FIRST", str(first)).replace("LIMIT", limit).replace("STEP", str(step))
    program = hlo.parse(text.replace("DIRECTION", direction).replace("STATED", stated))
    found = cost.count(program, devices=1)
    assert (found.flops, found.unknown_loops) == (trips * 2 * 8**3, 0)
