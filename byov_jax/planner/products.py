"""Floating-point operations of matrix products and convolutions, two for each multiply-and-add.

Nothing else is counted: what a chip's peak is stated for are matrix products.
"""

import math
import re
from functools import cache

from byov_jax.planner.hlo import Instruction
from byov_jax.planner.shapes import Shape


def flops(instruction: Instruction, operands: list[Shape]) -> int:
    """Of one instruction, 0 if it is neither; `operands` are its arrays."""
    if instruction.opcode == "dot":
        return _dot(instruction, operands, instruction.attribute("lhs_contracting_dims") or "")
    if instruction.opcode == "convolution":
        return _convolution(instruction, operands[0], operands[1], instruction.result[0])
    if instruction.opcode == "custom-call":
        return _library_call(instruction, operands)
    return 0


def _dot(instruction: Instruction, operands: list[Shape], axes: str) -> int:
    contracted = math.prod(operands[0].sizes[int(axis)] for axis in axes.split(",") if axis)
    return 2 * instruction.result[0].elements * contracted


def _library_call(instruction: Instruction, operands: list[Shape]) -> int:
    """Of cuBLAS, which says what axes it contracts, and of cuDNN, whose gradients swap the three arrays."""
    axes = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
    if axes is not None:
        return _dot(instruction, operands, axes[1].replace('"', ""))
    if not instruction.target.startswith("__cudnn$conv"):
        return 0
    first, second, result = operands[0], operands[1], instruction.result[0]
    roles = {"__cudnn$convBackwardInput": (result, second, first)}
    roles["__cudnn$convBackwardFilter"] = (first, result, second)
    return _convolution(instruction, *roles.get(instruction.target, (first, second, result)))


def _convolution(instruction: Instruction, inputs: Shape, kernel: Shape, result: Shape) -> int:
    """Counts only products with values that are there: not those with padding or between dilated ones.

    On a TPU even batched matrix products are convolutions, whose windows mostly meet such holes.
    """
    left, middle, _ = _labels(instruction)
    pairs = math.prod(len(_meetings(*axis)) for axis in _axes(instruction, inputs, result))
    batch = inputs.sizes[left.index("b")] // int(instruction.attribute("batch_group_count") or 1)
    return 2 * pairs * batch * kernel.sizes[middle.index("i")] * kernel.sizes[middle.index("o")]


def share(convolution: Instruction, inputs: Shape) -> float:
    """The part of its input that a convolution reads: negative padding cuts off the rest."""
    axes = _axes(convolution, inputs, convolution.result[0])
    return math.prod(len(set(_meetings(*axis))) / max(axis[0], 1) for axis in axes)


def _labels(convolution: Instruction) -> list[str]:
    """What each axis of input, kernel and result is: b, f, i, o, or the number of a spatial axis."""
    return re.split("_|->", convolution.attribute("dim_labels") or "")


def _axes(convolution: Instruction, inputs: Shape, result: Shape) -> list[tuple[int, ...]]:
    """Each spatial axis: sizes of input and result, then what `_window` says of it."""
    left, _, right = _labels(convolution)
    spatial = sorted(label for label in left if label.isdigit())
    window = _window(convolution.attribute("window") or "", len(spatial))
    return [
        (inputs.sizes[left.index(axis)], result.sizes[right.index(axis)], *window[int(axis)])
        for axis in spatial
    ]


def _window(text: str, axes: int) -> list[tuple[int, int, int, int, int]]:
    """Size, stride, low padding, dilation of the input and of the kernel, axis by axis."""
    given = dict(field.split("=") for field in text.split())

    def numbers(key: str, default: str) -> list[str]:
        return given[key].split("x") if key in given else [default] * axes

    low = [pair.partition("_")[0] for pair in numbers("pad", "0_0")]
    columns = (
        numbers("size", "1"),
        numbers("stride", "1"),
        low,
        numbers("lhs_dilate", "1"),
        numbers("rhs_dilate", "1"),
    )
    return [tuple(map(int, column)) for column in zip(*columns, strict=True)]  # type: ignore[misc]


@cache
def _meetings(
    inputs: int, outputs: int, size: int, stride: int, low: int, dilate: int, spread: int
) -> list[int]:
    """Positions in the input, one for every pair of an output and a tap of the window that meet there."""
    last = (inputs - 1) * dilate
    places = (out * stride + tap * spread - low for out in range(outputs) for tap in range(size))
    return [place for place in places if 0 <= place <= last and place % dilate == 0]
