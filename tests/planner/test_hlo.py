"""Shapes and bytes of arrays in the text of compiled programs."""

import pytest

from byov_jax.planner import hlo


@pytest.mark.parametrize(
    ("text", "dims", "nbytes", "space"),
    [
        ("f32[]", (), 4, 0),
        ("pred[3]", (3,), 3, 0),
        ("f32[2,3]{1,0}", (2, 3), 24, 0),
        ("bf16[256,197,768]{2,0,1:T(8,128)(2,1)S(1)}", (256, 197, 768), 2 * 256 * 197 * 768, 1),
        # Tiles of 8 rows of 128 pad the fastest axis from 197 to 256, and the next to 200.
        ("f32[256,12,197,197]{2,3,1,0:T(8,128)}", (256, 12, 197, 197), 4 * 256 * 12 * 200 * 256, 0),
        ("f32[]{:T(128)}", (), 512, 0),
        ("s4[3]{0}", (3,), 2, 0),
        ("f32[0,5]{1,0:T(8,128)}", (0, 5), 0, 0),
    ],
)
def test_one_array(text, dims, nbytes, space):
    (shape,) = hlo.parse_shapes(text)
    assert (shape.dims, shape.nbytes, shape.memory_space) == (dims, nbytes, space)


def test_a_nested_tuple_gives_its_arrays_in_order():
    text = "((bf16[256,50]{1,0:T(8,128)(2,1)}), /*index=1*/u8[7]{0:S(5)}, token[], s32[]{:S(2)})"
    assert [(s.dtype, s.dims, s.memory_space) for s in hlo.parse_shapes(text)] == [
        ("bf16", (256, 50), 0),
        ("u8", (7,), 5),
        ("s32", (), 2),
    ]
