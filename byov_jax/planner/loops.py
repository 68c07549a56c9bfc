"""How often the body of a loop runs: stated by the compiler, or found by counting as the loop does.

XLA's own cost analysis counts every body once.
"""

import operator
import re
from collections.abc import Callable

from byov_jax.planner.hlo import Computation, Instruction, Program

MOST = 1_000_000
"""Trips after which counting gives up."""

Values = Callable[[int, int | None], int | None]
"""The number in parameter i of a computation, or in element j of it if it is a tuple; None if unknown."""

_THROUGH = ("copy", "copy-start", "copy-done", "bitcast", "convert", "reshape", "broadcast")
_ARITHMETIC = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
_COMPARISONS = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


def unknown(parameter: int, element: int | None) -> int | None:
    """The values of a computation of which nothing is known."""
    return None


def trips(program: Program, computation: Computation, loop: Instruction, values: Values) -> int | None:
    """How often the while loop `loop` of `computation` runs; None if only the data decide that."""
    stated = re.search(r'known_trip_count"?:\{"n":"(\d+)"', loop.attributes)
    if stated is not None:
        return int(stated[1])
    condition, body = (program.computations[loop.calls(key)[0]] for key in ("condition", "body"))
    start = inside(program, computation, loop, values)
    counters = {_index(i) for i in condition.instructions if i.opcode == "get-tuple-element"}
    state = {element: start(0, element) for element in counters}
    for count in range(MOST):

        def now(parameter: int, element: int | None) -> int | None:
            return state[element] if element in state else start(parameter, element)  # noqa: B023

        goes_on = evaluate(program, condition, condition.root, now)
        if not goes_on:
            return count if goes_on is not None else None
        next_ones = {}
        for element in state:
            changed = body.by_name[body.root.operands[element]]
            next_ones[element] = evaluate(program, body, changed, now)
        state = next_ones
    return None


def inside(program: Program, computation: Computation, caller: Instruction, values: Values) -> Values:
    """The values of the parameters of what `caller` calls."""

    def value(parameter: int, element: int | None) -> int | None:
        given = computation.by_name[caller.operands[parameter]]
        if element is None:
            return evaluate(program, computation, given, values)
        return _element(program, computation, given, element, values)

    return value


def evaluate(
    program: Program, computation: Computation, instruction: Instruction, values: Values
) -> int | None:
    """The whole number that `instruction` gives; None if it depends on data."""
    opcode = instruction.opcode
    if opcode == "constant":
        return _number(instruction.inside)
    if opcode == "parameter":
        return values(int(instruction.inside), None)
    operands = list(computation.operands(instruction))
    if opcode == "get-tuple-element":
        return _element(program, computation, operands[0], _index(instruction), values)
    if opcode in _THROUGH:
        return evaluate(program, computation, operands[0], values)
    if opcode in ("fusion", "call"):
        called = program.computations[instruction.calls("calls", "to_apply")[0]]
        return evaluate(program, called, called.root, inside(program, computation, instruction, values))
    if opcode != "compare" and opcode not in _ARITHMETIC:
        return None
    left, right = (evaluate(program, computation, operand, values) for operand in operands)
    if left is None or right is None:
        return None
    if opcode == "compare":
        return int(_COMPARISONS[instruction.attribute("direction") or "LT"](left, right))
    return _ARITHMETIC[opcode](left, right)


def _element(
    program: Program, computation: Computation, source: Instruction, element: int, values: Values
) -> int | None:
    if source.opcode == "parameter":
        return values(int(source.inside), element)
    if source.opcode == "tuple":
        return evaluate(program, computation, computation.by_name[source.operands[element]], values)
    return None


def _index(instruction: Instruction) -> int:
    return int(instruction.attribute("index") or 0)


def _number(text: str) -> int | None:
    if text in ("true", "false"):
        return int(text == "true")
    return int(text) if re.fullmatch(r"-?\d+", text) else None
