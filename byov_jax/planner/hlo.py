"""Parser for the text of a compiled program (`compiled.as_text()`): computations of instructions."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

MAIN_MEMORY = 0
"""Memory space of arrays whose layout names none: HBM. On a TPU, S(1) is on-chip memory."""

_ARRAY = re.compile(
    r"(?P<dtype>[a-z][a-z0-9]*)\[(?P<dims>[0-9,<=]*)\]"
    r"(?:\{(?P<order>[0-9,]*)(?::(?P<tiles>(?:T[0-9,()*]+)?)[^}]*?(?:S\((?P<space>\d+)\))?)?\})?"
)
_INSTRUCTION = re.compile(r"\s*(?P<root>ROOT )?%?(?P<name>\S+) = (?P<result>.*?) (?P<opcode>[a-z][\w\-]*)\(")
_NAME = re.compile(r"%([\w.\-]+)")


class Shape(NamedTuple):
    """One array, written like `bf16[256,197,768]{2,0,1:T(8,128)(2,1)S(1)}`.

    Attributes:
      dtype: such as `bf16`.
      dims: sizes of the axes.
      nbytes: in memory, including the padding to whole tiles.
      memory_space: number of the memory that holds the array.
    """

    dtype: str
    dims: tuple[int, ...]
    nbytes: int
    memory_space: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)


class Instruction(NamedTuple):
    """One line: `ROOT %name = RESULT opcode(operands), attributes`.

    Attributes:
      name: unique in its computation.
      opcode: such as `fusion`.
      result: its arrays, one unless it is a tuple.
      operands: names of instructions of the same computation.
      literal: text between the parentheses: the value of a constant, the number of a parameter.
      attributes: the rest of the line.
    """

    name: str
    opcode: str
    result: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str

    def attribute(self, key: str) -> str | None:
        """Return the value of `key=value`, without the braces of a list."""
        match = re.search(rf"(?:^|[ ,]){key}=(?:\{{([^}}]*)\}}|([^,\s]+))", self.attributes)
        return None if match is None else match[1] if match[1] is not None else match[2]

    @property
    def custom_call_target(self) -> str:
        """Name of the function that a custom call runs, "" for other instructions."""
        return (self.attribute("custom_call_target") or "").strip('"')

    def called(self, *keys: str) -> list[str]:
        """Return the names of the computations in the attributes `keys`."""
        return [name for key in keys for name in _NAME.findall(self.attribute(key) or "")]


@dataclass(frozen=True)
class Computation:
    """A sequence of instructions.

    Attributes:
      instructions: by name, in the order in which they run.
      root_name: the instruction that computes the result.
    """

    instructions: dict[str, Instruction]
    root_name: str

    @property
    def root(self) -> Instruction:
        """The instruction that computes the result."""
        return self.instructions[self.root_name]

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that take each instruction as an operand, by its name."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    @cached_property
    def parameters(self) -> list[Instruction]:
        """The parameters in order."""
        parameters = (each for each in self.instructions.values() if each.opcode == "parameter")
        return sorted(parameters, key=lambda parameter: int(parameter.literal))

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions that compute the operands of `instruction`."""
        return [self.instructions[name] for name in instruction.operands]

    def operand_shapes(self, instruction: Instruction) -> list[Shape]:
        """Return the arrays of all operands of `instruction`, those of tuples in order."""
        return [shape for operand in self.operands(instruction) for shape in operand.result]


class Program(NamedTuple):
    """All computations by name, and the name of the entry computation."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Program:
    """Parse the result of `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    instructions: dict[str, Instruction] = {}
    entry = name = root = ""
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")) and line.endswith("{"):
            name, root, instructions = re.search(r"%?([\w.\-]+) \(", line)[1], "", {}  # type: ignore[index]
            entry = name if line.startswith("ENTRY ") else entry
        elif line == "}":
            computations[name] = Computation(instructions, root)
        elif name and (match := _INSTRUCTION.match(line)):
            instructions[match["name"]] = _instruction(line, match)
            root = match["name"] if match["root"] else root
    if entry not in computations:
        raise ValueError("the text is not a compiled program: it has no ENTRY computation")
    return Program(computations, entry)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return all arrays of a shape in order: one, or those of a nested tuple. Tokens are left out."""
    return tuple(_shape(match) for match in _ARRAY.finditer(text) if match["dtype"] != "token")


def _instruction(line: str, head: re.Match[str]) -> Instruction:
    end = _closing_parenthesis(line, head.end() - 1)
    literal = line[head.end() : end]
    return Instruction(
        name=head["name"],
        opcode=head["opcode"],
        result=parse_shapes(head["result"]),
        operands=tuple(_NAME.findall(literal)),
        literal=literal,
        attributes=line[end + 1 :].removeprefix(", "),
    )


def _closing_parenthesis(text: str, start: int) -> int:
    """Return the position of the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ValueError(f"unbalanced parentheses: {text[:80]}")


def _shape(match: re.Match[str]) -> Shape:
    dims = tuple(int(size.lstrip("<=")) for size in match["dims"].split(",") if size)
    order = [int(axis) for axis in (match["order"] or "").split(",") if axis]
    digits = re.search(r"\d+", match["dtype"])
    bits = int(digits[0]) if digits else 8  # pred
    elements = math.prod(_padded([dims[axis] for axis in order] or list(dims[::-1]), match["tiles"] or ""))
    return Shape(match["dtype"], dims, -(-elements * bits // 8), int(match["space"] or MAIN_MEMORY))


def _padded(dims: list[int], tiles: str) -> list[int]:
    """Round sizes, the fastest axis first, up to whole tiles: `T(8,128)(2,1)` is tiles of 8 rows of 128."""
    outermost = re.match(r"T\(([0-9,]+)\)", tiles)
    if outermost is None or 0 in dims:
        return dims
    tile = [int(size) for size in outermost[1].split(",")][::-1]
    dims = dims + [1] * (len(tile) - len(dims))
    return [-(-size // step) * step for size, step in zip(dims, tile, strict=False)] + dims[len(tile) :]
