"""Bytes that devices exchange: what one of them receives if nothing is sent twice."""

import math
import re
from typing import Any

from byov_jax.planner.hlo import Instruction
from byov_jax.planner.shapes import Shape

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


def received(instruction: Instruction, kind: str, operands: list[Shape], devices: int) -> int:
    """Bytes that a device receives, by the best algorithm (that of a ring).

    Args:
      instruction: of one of `KINDS`, or the start of it.
      kind: which of them.
      operands: its arrays on one device.
      devices: in all.
    """
    size = sum(shape.bytes for shape in operands)
    if kind in ("collective-permute", "collective-broadcast"):
        return size
    group = group_size(instruction, devices)
    others = {"all-gather": group - 1, "all-reduce": 2 * (group - 1) / group}.get(kind, (group - 1) / group)
    return round(size * others)


def group_size(instruction: Instruction, devices: int) -> int:
    """How many devices take part with each other, in any of XLA's three notations for `replica_groups`."""
    text = instruction.attributes.partition("replica_groups=")[2]
    mesh = re.match(r"mesh\[([^\]]*)\]\s*\{([^}]*)\}", text)  # mesh['x'=4,'y'=4] {'x'}
    if mesh is not None:
        return _axes(mesh[1], mesh[2])
    grid = re.match(r"\[([0-9,]+)\]<=", text)  # [4,2]<=[8]: 4 groups of 2
    if grid is not None:
        return int(grid[1].split(",")[-1])
    listed = re.match(r"\{\{([0-9,]+)\}", text)  # {{0,1},{2,3}}
    return len(listed[1].split(",")) if listed is not None else devices


def _axes(mesh: str, taking_part: str) -> int:
    """The product of some axes' sizes; `'x':(1)2` is a part of size 2 of axis x."""
    sizes: dict[str, Any] = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", taking_part)
    return math.prod(int(part) if part else sizes[name] for name, part in parts)
