"""Bytes of arrays as compiled programs write them."""

import pytest

from byov_jax.planner import shapes


@pytest.mark.parametrize(
    ("text", "sizes", "size", "space"),
    [
        ("f32[]", (), 4, 0),
        ("pred[3]", (3,), 3, 0),
        ("f32[2,3]{1,0}", (2, 3), 24, 0),
        ("bf16[256,197,768]{2,0,1:T(8,128)(2,1)S(1)}", (256, 197, 768), 2 * 256 * 197 * 768, 1),
        # Tiles of 8 rows of 128: the fastest axis has 197 values in 256 places, the next 197 in 200.
        ("f32[256,12,197,197]{2,3,1,0:T(8,128)}", (256, 12, 197, 197), 4 * 256 * 12 * 200 * 256, 0),
        ("f32[]{:T(128)}", (), 512, 0),
        ("s4[3]{0}", (3,), 2, 0),
        ("f32[0,5]{1,0:T(8,128)}", (0, 5), 0, 0),
    ],
)
def test_one_array(text, sizes, size, space):
    (shape,) = shapes.parse(text)
    assert (shape.sizes, shape.bytes, shape.space) == (sizes, size, space)


def test_a_nested_tuple_is_its_arrays_in_order():
    text = "((bf16[256,50]{1,0:T(8,128)(2,1)}), /*index=1*/u8[7]{0:S(5)}, token[], s32[]{:S(2)})"
    assert [(s.type, s.sizes, s.space) for s in shapes.parse(text)] == [
        ("bf16", (256, 50), 0),
        ("u8", (7,), 5),
        ("s32", (), 2),
    ]
