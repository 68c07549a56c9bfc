"""Arrays as the text of a compiled program writes them: `bf16[256,197,768]{2,0,1:T(8,128)(2,1)S(1)}`."""

import math
import re
from typing import NamedTuple

BITS = {
    **dict.fromkeys(("pred", "s8", "u8"), 8),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("s2", "u2"), 2),
    "c128": 128,
}
MAIN_MEMORY = 0
"""The memory space of arrays whose layout names none: HBM. On a TPU S(1) is the memory on the core."""

_ARRAY = re.compile(
    r"(?P<type>[a-z][a-z0-9]*)\[(?P<sizes>[0-9,<=]*)\]"
    r"(?:\{(?P<order>[0-9,]*)(?::(?P<tiles>(?:T[0-9,()*]+)?)[^}]*?(?:S\((?P<space>\d+)\))?)?\})?"
)


class Shape(NamedTuple):
    """One array.

    Attributes:
      type: of an element, such as `bf16`.
      sizes: of its axes.
      bytes: in memory, with the padding of the device's tiles.
      space: which memory it lies in.
    """

    type: str
    sizes: tuple[int, ...]
    bytes: int
    space: int

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.sizes)


def parse(text: str) -> tuple[Shape, ...]:
    """All arrays of a shape, in order: one, or those of a tuple however nested. Tokens have none."""
    return tuple(_shape(match) for match in _ARRAY.finditer(text) if match["type"] != "token")


def _shape(match: re.Match[str]) -> Shape:
    sizes = tuple(int(size.lstrip("<=")) for size in match["sizes"].split(",") if size)
    order = [int(axis) for axis in (match["order"] or "").split(",") if axis]
    bits = BITS.get(match["type"], 8)  # the many 8-bit floats
    elements = math.prod(_padded([sizes[axis] for axis in order] or list(sizes[::-1]), match["tiles"] or ""))
    return Shape(match["type"], sizes, -(-elements * bits // 8), int(match["space"] or MAIN_MEMORY))


def _padded(sizes: list[int], tiles: str) -> list[int]:
    """Sizes, the fastest axis first, rounded up to whole tiles: `T(8,128)(2,1)` is tiles of 8 rows of 128."""
    outermost = re.match(r"T\(([0-9,]+)\)", tiles)
    if outermost is None or 0 in sizes:
        return sizes
    tile = [int(size) for size in outermost[1].split(",")][::-1]
    sizes = sizes + [1] * (len(tile) - len(sizes))
    return [-(-size // part) * part for size, part in zip(sizes, tile, strict=False)] + sizes[len(tile) :]
