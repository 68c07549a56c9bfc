"""FLOPs of matrix products and convolutions, and bytes that collectives receive, per instruction.

A multiply-and-add is two FLOPs. Elementwise operations are not counted: a chip's peak is stated for matrix
products.
"""

import math
import re
from functools import cache

from byov_jax.planner.hlo import Instruction, Shape

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


def flops(instruction: Instruction, operands: list[Shape]) -> int:
    """Return the FLOPs of an instruction with these operands, 0 if it is not a product or convolution."""
    if instruction.opcode == "dot":
        return _dot(instruction, operands, instruction.attribute("lhs_contracting_dims") or "")
    if instruction.opcode == "convolution":
        return _convolution(instruction, operands[0], operands[1], instruction.result[0])
    if instruction.opcode == "custom-call":
        return _custom_call(instruction, operands)
    return 0


def received_bytes(instruction: Instruction, kind: str, operands: list[Shape], devices: int) -> int:
    """Return the bytes that one device receives in a collective, with a ring algorithm.

    Args:
      instruction: the collective, or its start.
      kind: one of `COLLECTIVES`.
      operands: arrays of one device.
      devices: total number of devices.
    """
    nbytes = sum(shape.nbytes for shape in operands)
    if kind in ("collective-permute", "collective-broadcast"):
        return nbytes
    group = group_size(instruction, devices)
    factor = {"all-gather": group - 1, "all-reduce": 2 * (group - 1) / group}.get(kind, (group - 1) / group)
    return round(nbytes * factor)


def group_size(instruction: Instruction, devices: int) -> int:
    """Return the devices per group of a collective, from any of XLA's three notations of replica_groups."""
    groups = instruction.attributes.partition("replica_groups=")[2]
    mesh = re.match(r"mesh\[([^\]]*)\]\s*\{([^}]*)\}", groups)  # mesh['x'=4,'y'=4] {'x'}
    if mesh is not None:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh[2])  # 'x':(1)2 is a part of size 2 of axis x
        return math.prod(int(part or sizes[name]) for name, part in axes)
    grid = re.match(r"\[([0-9,]+)\]<=", groups)  # [4,2]<=[8]: 4 groups of 2
    if grid is not None:
        return int(grid[1].split(",")[-1])
    listed = re.match(r"\{\{([0-9,]+)\}", groups)  # {{0,1},{2,3}}
    return len(listed[1].split(",")) if listed is not None else devices


def fraction_read(convolution: Instruction, inputs: Shape) -> float:
    """Return the fraction of its input that a convolution reads: negative padding crops the input."""
    axes = _spatial_axes(convolution, inputs, convolution.result[0])
    return math.prod(len(set(_positions_read(*axis))) / max(axis[0], 1) for axis in axes)


def _dot(instruction: Instruction, operands: list[Shape], contracted_axes: str) -> int:
    contracted = math.prod(operands[0].dims[int(axis)] for axis in contracted_axes.split(",") if axis)
    return 2 * instruction.result[0].size * contracted


def _custom_call(instruction: Instruction, operands: list[Shape]) -> int:
    """Return the FLOPs of cuBLAS and cuDNN calls; the gradients of cuDNN permute the three arrays."""
    axes = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
    if axes is not None:
        return _dot(instruction, operands, axes[1].replace('"', ""))
    target = instruction.custom_call_target
    if not target.startswith("__cudnn$conv"):
        return 0
    first, second, result = operands[0], operands[1], instruction.result[0]
    if target == "__cudnn$convBackwardInput":
        return _convolution(instruction, result, second, first)
    if target == "__cudnn$convBackwardFilter":
        return _convolution(instruction, first, result, second)
    return _convolution(instruction, first, second, result)


def _convolution(instruction: Instruction, inputs: Shape, kernel: Shape, result: Shape) -> int:
    """Return the FLOPs of products with input values, excluding those with padding and dilation holes.

    On a TPU batched matrix products are also convolutions, with windows that mostly cover such holes.
    """
    left, middle, _ = _dimension_labels(instruction)
    pairs = math.prod(len(_positions_read(*axis)) for axis in _spatial_axes(instruction, inputs, result))
    batch = inputs.dims[left.index("b")] // int(instruction.attribute("batch_group_count") or 1)
    return 2 * pairs * batch * kernel.dims[middle.index("i")] * kernel.dims[middle.index("o")]


def _dimension_labels(convolution: Instruction) -> list[str]:
    """Return a letter per axis of input, kernel and result: b, f, i, o, or the number of a spatial axis."""
    return re.split("_|->", convolution.attribute("dim_labels") or "")


def _spatial_axes(convolution: Instruction, inputs: Shape, result: Shape) -> list[tuple[int, ...]]:
    """Return the arguments of `_positions_read` for each spatial axis."""
    left, _, right = _dimension_labels(convolution)
    spatial = sorted(label for label in left if label.isdigit())
    fields = dict(field.split("=") for field in (convolution.attribute("window") or "").split())

    def values(key: str, default: str) -> list[int]:
        texts = fields[key].split("x") if key in fields else [default] * len(spatial)
        return [int(text.partition("_")[0]) for text in texts]  # of the padding the lower part

    defaults = {"size": "1", "stride": "1", "pad": "0", "lhs_dilate": "1", "rhs_dilate": "1"}
    window = list(zip(*(values(*item) for item in defaults.items()), strict=True))
    return [
        (inputs.dims[left.index(axis)], result.dims[right.index(axis)], *window[int(axis)])
        for axis in spatial
    ]


@cache
def _positions_read(
    inputs: int, outputs: int, size: int, stride: int, padding: int, input_dilation: int, kernel_dilation: int
) -> list[int]:
    """Return a position in the dilated input for every pair of an output and a tap that reads a value."""
    last = (inputs - 1) * input_dilation
    taps = (out * stride + tap * kernel_dilation - padding for out in range(outputs) for tap in range(size))
    return [tap for tap in taps if 0 <= tap <= last and tap % input_dilation == 0]
