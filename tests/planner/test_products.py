"""Operations of the matrix products and convolutions that vendors' libraries compute."""

import pytest

from byov_jax.planner import cost, hlo

PROGRAM = """HloModule step

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
def test_library_calls(a, b, result, attributes, flops):
    if "=" not in attributes:
        attributes = (
            f'window={{size=3x3}}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$conv{attributes}"'
        )
    text = PROGRAM.replace("SHAPE_A", a).replace("SHAPE_B", b).replace("RESULT", result)
    program = hlo.parse(text.replace("ATTRIBUTES", attributes))
    assert cost.count(program, devices=1).flops == flops
