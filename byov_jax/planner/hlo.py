"""The text of a compiled program, as computations of instructions."""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from byov_jax.planner import shapes
from byov_jax.planner.shapes import Shape


class Instruction(NamedTuple):
    """One line: `ROOT %name = SHAPE opcode(operands), attributes`.

    Attributes:
      name: unique in its computation.
      opcode: such as `fusion`.
      result: its arrays, one unless it is a tuple.
      operands: names of instructions of the same computation.
      inside: what stands in the parentheses, for constants and parameters.
      attributes: the rest of the line.
    """

    name: str
    opcode: str
    result: tuple[Shape, ...]
    operands: tuple[str, ...]
    inside: str
    attributes: str

    def attribute(self, key: str) -> str | None:
        """The value of `key=value`, without the braces of a list."""
        found = re.search(rf"(?:^|[ ,]){key}=(?:\{{([^}}]*)\}}|([^,\s]+))", self.attributes)
        return None if found is None else found[1] if found[1] is not None else found[2]

    @property
    def target(self) -> str:
        """What a custom call calls."""
        return (self.attribute("custom_call_target") or "").strip('"')

    def calls(self, *keys: str) -> list[str]:
        """Names of the computations that the attributes `keys` name."""
        texts = (self.attribute(key) for key in keys)
        return [name for text in texts if text for name in re.findall(r"%([\w.\-]+)", text)]


class Computation:
    """Instructions in the order in which they run; the last in the text marked ROOT is the result."""

    def __init__(self, name: str, instructions: list[Instruction], root: str) -> None:
        self.name, self.instructions, self._root = name, instructions, root

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Who uses what an instruction computes, by its name."""
        found: dict[str, list[Instruction]] = {instruction.name: [] for instruction in self.instructions}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                found[operand].append(instruction)
        return found

    @cached_property
    def parameters(self) -> list[Instruction]:
        """Its parameters in order."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return sorted(found, key=lambda parameter: int(parameter.inside))

    @property
    def root(self) -> Instruction:
        """The result."""
        return self.by_name[self._root]

    def operands(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instructions that `instruction` takes as operands."""
        return (self.by_name[name] for name in instruction.operands)


class Program(NamedTuple):
    """All computations by name, and the name of the one that runs."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Program:
    """Reads what `compiled.as_text()` gives."""
    computations: dict[str, Computation] = {}
    instructions: list[Instruction] = []
    entry = name = root = ""
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")) and line.endswith("{"):
            name, root, instructions = re.search(r"%?([\w.\-]+) \(", line)[1], "", []  # type: ignore[index]
            entry = name if line.startswith("ENTRY ") else entry
        elif line == "}":
            computations[name] = Computation(name, instructions, root)
        elif name and " = " in line:
            instruction = _instruction(line)
            instructions.append(instruction)
            if line.lstrip().startswith("ROOT "):
                root = instruction.name
    if entry not in computations:
        raise ValueError("the text is not a compiled program: it has no ENTRY computation")
    return Program(computations, entry)


def _instruction(line: str) -> Instruction:
    left, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    end = _closing(rest, start)
    inside = rest[start + 1 : end - 1]
    return Instruction(
        name=left.lstrip("%"),
        opcode=rest[:start],
        result=shapes.parse(shape),
        operands=tuple(re.findall(r"%([\w.\-]+)", inside)),
        inside=inside,
        attributes=rest[end:].removeprefix(", "),
    )


def _closing(text: str, start: int) -> int:
    """The position after the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    raise ValueError(f"unbalanced parentheses: {text[:80]}")
