"""Trip counts of while loops: as stated by the compiler, or by evaluating the loop's counters.

XLA's own cost analysis counts the body of every loop once.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from byov_jax.planner.hlo import Computation, Instruction, Program

MAX_TRIPS = 1_000_000
"""Trips after which evaluation stops."""

Arguments = Callable[[int, int | None], int | None]
"""The integer in parameter i of a computation, or in element j of it if it is a tuple; None if unknown."""

_UNARY = ("copy", "copy-start", "copy-done", "bitcast", "convert", "reshape", "broadcast")
_BINARY = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
_COMPARISONS = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


@dataclass(frozen=True)
class Scope:
    """A computation with the arguments of one call, for evaluating the integers in it.

    Attributes:
      program: the whole program.
      computation: one of its computations.
      arguments: values of the parameters, by default unknown.
    """

    program: Program
    computation: Computation
    arguments: Arguments = lambda parameter, element: None

    def enter(self, caller: Instruction, name: str) -> "Scope":
        """Return the scope of the computation `name`, called by `caller` with its operands."""

        def arguments(parameter: int, element: int | None) -> int | None:
            return self.evaluate(self.computation.instructions[caller.operands[parameter]], element)

        return Scope(self.program, self.program.computations[name], arguments)

    def trips(self, loop: Instruction) -> int | None:
        """Return how often the body of the while instruction `loop` runs; None if it depends on data."""
        stated = re.search(r'known_trip_count"?:\{"n":"(\d+)"', loop.attributes)
        if stated is not None:
            return int(stated[1])
        condition, body = (self.enter(loop, loop.called(key)[0]) for key in ("condition", "body"))
        reads = (each for each in condition.computation.instructions.values() if _is_element(each))
        state = {element: condition.arguments(0, element) for element in {_index(each) for each in reads}}
        for count in range(MAX_TRIPS):
            proceed = condition._with_state(state).evaluate(condition.computation.root)
            if not proceed:
                return None if proceed is None else count
            iteration = body._with_state(state)
            state = {element: iteration.evaluate(body.computation.root, element) for element in state}
        return None

    def _with_state(self, state: dict[int, int | None]) -> "Scope":
        """Return this scope with other values for some elements of the loop's state."""

        def arguments(parameter: int, element: int | None) -> int | None:
            return state[element] if element in state else self.arguments(parameter, element)

        return replace(self, arguments=arguments)

    def evaluate(self, instruction: Instruction, element: int | None = None) -> int | None:
        """Return the integer that `instruction` computes; None if it depends on data.

        Args:
          instruction: one of this computation.
          element: which element of the result, if that is a tuple.
        """
        opcode = instruction.opcode
        if opcode == "parameter":
            return self.arguments(int(instruction.literal), element)
        operands = self.computation.operands(instruction)
        if element is not None:
            return self.evaluate(operands[element]) if opcode == "tuple" else None
        if opcode == "constant":
            return _integer(instruction.literal)
        if _is_element(instruction):
            return self.evaluate(operands[0], _index(instruction))
        if opcode in _UNARY:
            return self.evaluate(operands[0])
        if opcode in ("fusion", "call"):
            inner = self.enter(instruction, instruction.called("calls", "to_apply")[0])
            return inner.evaluate(inner.computation.root)
        if opcode != "compare" and opcode not in _BINARY:
            return None
        left, right = (self.evaluate(operand) for operand in operands)
        if left is None or right is None:
            return None
        if opcode == "compare":
            return int(_COMPARISONS[instruction.attribute("direction") or "LT"](left, right))
        return _BINARY[opcode](left, right)


def _is_element(instruction: Instruction) -> bool:
    return instruction.opcode == "get-tuple-element"


def _index(element: Instruction) -> int:
    return int(element.attribute("index") or 0)


def _integer(text: str) -> int | None:
    if text in ("true", "false"):
        return int(text == "true")
    return int(text) if re.fullmatch(r"-?\d+", text) else None
