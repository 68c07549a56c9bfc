"""What a compiled program does, counted from its text: operations, bytes of memory, bytes between devices.

XLA's `cost_analysis` counts the body of a loop once, and takes memory on the core for main memory. This walk
multiplies by the number of trips, and counts what goes to and from main memory only. A fusion reads its
operands and writes its results; of an operand of which it takes a slice it reads the slice, and of one
that it updates in place it writes what it updates.
"""

from collections import Counter
from dataclasses import dataclass, replace

from byov_jax.planner import collectives, loops, products
from byov_jax.planner.hlo import Computation, Instruction, Program
from byov_jax.planner.loops import Values
from byov_jax.planner.shapes import MAIN_MEMORY, Shape


@dataclass(frozen=True)
class Cost:
    """Of one device in one step.

    Attributes:
      flops: of matrix products and convolutions.
      bytes: to and from main memory.
      collectives: bytes received from other devices, by kind.
      unknown_loops: loops whose number of trips only the data decide, counted once.
    """

    flops: int
    bytes: int
    collectives: dict[str, int]
    unknown_loops: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Both, one after the other."""
        return Cost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            dict(Counter(self.collectives) + Counter(other.collectives)),
            self.unknown_loops + other.unknown_loops,
        )

    def __mul__(self, times: int) -> "Cost":
        """The same, several times."""
        exchanged = {kind: size * times for kind, size in self.collectives.items()}
        return Cost(self.flops * times, self.bytes * times, exchanged, self.unknown_loops)


NOTHING = Cost(0, 0, {})
FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all"),
    *("partition-id", "replica-id", "add-dependency", "domain"),
)
"""Opcodes that touch no memory."""
FREE_CALLS = ("AllocateBuffer", "ConcatBitcast", "AsyncCollectiveStart", "AsyncCollectiveDone")
"""Custom calls of the TPU's compiler that only name memory."""
SLICES = ("slice", "dynamic-slice", "gather")
MOVES = ("bitcast", "pad", "convert", "copy", "reshape", "transpose")
"""Of whose operand a part is used if a part of their result is."""


def count(program: Program, *, devices: int, once: bool = False, everywhere: bool = False) -> Cost:
    """The cost of running the program once.

    Args:
      program: from `hlo.parse`.
      devices: that run it together.
      once: count the body of a loop once, as XLA does.
      everywhere: count bytes of every memory, as XLA does.
    """
    walk = _Walk(program, devices, once, everywhere)
    return walk.computation(program.computations[program.entry], loops.unknown)


class _Walk:
    def __init__(self, program: Program, devices: int, once: bool, everywhere: bool) -> None:
        self.program, self.devices, self.once, self.everywhere = program, devices, once, everywhere

    def computation(self, computation: Computation, values: Values) -> Cost:
        found = (self._instruction(computation, each, values) for each in computation.instructions)
        return sum(found, NOTHING)

    def _instruction(self, computation: Computation, instruction: Instruction, values: Values) -> Cost:
        opcode = instruction.opcode
        if opcode in FREE or opcode.endswith(("-done", "-update")):
            return NOTHING
        inner = loops.inside(self.program, computation, instruction, values)
        if opcode == "while":
            trips = 1 if self.once else loops.trips(self.program, computation, instruction, values)
            body = [self._called(name, inner) for name in instruction.calls("body", "condition")]
            unknown = Cost(0, 0, {}, unknown_loops=int(trips is None))
            return sum(body, NOTHING) * (1 if trips is None else trips) + unknown
        if opcode in ("call", "async-start"):
            return sum((self._called(n, inner) for n in instruction.calls("to_apply", "calls")), NOTHING)
        if opcode == "conditional":
            names = instruction.calls("branch_computations", "true_computation", "false_computation")
            branches = [self._called(name, loops.unknown) for name in names]
            return max(branches, key=lambda cost: (cost.flops, cost.bytes))
        operands = [shape for operand in computation.operands(instruction) for shape in operand.result]
        if opcode == "fusion":
            fused = self.program.computations[instruction.calls("calls")[0]]
            return replace(self._fused(fused), bytes=self._fusion_bytes(fused, instruction, operands))
        touched = self._bytes(instruction, operands)
        return Cost(products.flops(instruction, operands), touched, self._exchanged(instruction, operands))

    def _called(self, name: str, values: Values) -> Cost:
        return self.computation(self.program.computations[name], values)

    def _fused(self, fused: Computation) -> Cost:
        """Operations and exchanges within a fusion, which touches no memory but its operands and results."""
        total = NOTHING
        # The TPU's compiler spreads an exchange over many fusions, in and around loops; one starts it.
        starts = any(each.target == "AsyncCollectiveStart" for each in fused.instructions)
        for instruction in fused.instructions:
            if instruction.opcode == "fusion":
                total += self._fused(self.program.computations[instruction.calls("calls")[0]])
            elif instruction.opcode not in FREE:
                operands = [shape for operand in fused.operands(instruction) for shape in operand.result]
                counts = starts or "async_collective_fusion_config" not in instruction.attributes
                exchanged = self._exchanged(instruction, operands) if counts else {}
                total += Cost(products.flops(instruction, operands), 0, exchanged)
        return total

    def _exchanged(self, instruction: Instruction, operands: list[Shape]) -> dict[str, int]:
        kind = instruction.opcode.removesuffix("-start")
        if kind not in collectives.KINDS:
            return {}
        return {kind: collectives.received(instruction, kind, operands, self.devices)}

    def _bytes(self, instruction: Instruction, operands: list[Shape]) -> int:
        """Bytes that an instruction outside of fusions reads and writes."""
        opcode, result = instruction.opcode, list(instruction.result)
        if opcode.endswith("-start") and opcode != "all-reduce-start":
            if opcode == "copy-start":
                return self._size(result[:2])
            opcode, result = opcode.removesuffix("-start"), result[len(operands) :]
        if opcode == "custom-call" and instruction.target in FREE_CALLS:
            return 0
        if opcode in SLICES:
            return self._size(result) + self._part(operands[0], result[0]) + self._size(operands[1:])
        if opcode == "dynamic-update-slice":
            return self._size(operands[1:]) + self._part(result[0], operands[1])
        return self._size(operands) + self._size(result)

    def _fusion_bytes(self, fused: Computation, instruction: Instruction, operands: list[Shape]) -> int:
        read = sum(
            round(self._size([shape]) * self._share(fused, parameter))
            for parameter, shape in zip(fused.parameters, operands, strict=True)
        )
        root = fused.root
        results = list(fused.operands(root)) if root.opcode == "tuple" else [root]
        if len(results) != len(instruction.result):
            return read + self._size(list(instruction.result))
        written = (self._written(fused, *pair) for pair in zip(results, instruction.result, strict=True))
        return read + sum(written)

    def _share(self, fused: Computation, value: Instruction) -> float:
        """The part of a value within a fusion that is used."""
        if value.name == fused.root.name:
            return 1.0
        return min(1.0, sum(self._share_of_user(fused, value, user) for user in fused.users[value.name]))

    def _share_of_user(self, fused: Computation, value: Instruction, user: Instruction) -> float:
        first = user.operands[0] == value.name
        if user.opcode == "fusion":
            called = self.program.computations[user.calls("calls")[0]]
            places = [place for place, operand in enumerate(user.operands) if operand == value.name]
            inner = sum(self._share(called, called.parameters[place]) for place in places)
            return inner * self._share(fused, user)
        if first and user.opcode in SLICES:
            part = user.result[0].elements / max(value.result[0].elements, 1)
            return part * self._share(fused, user)
        if first and user.opcode in MOVES:
            return self._share(fused, user)
        if first and user.opcode == "convolution":
            return products.share(user, value.result[0])
        return 0.0 if _passes_on(user, value.name) else 1.0

    def _written(self, fused: Computation, result: Instruction, whole: Shape) -> int:
        """Bytes of a result that a fusion writes: an update in place writes what it updates."""
        while result.opcode == "bitcast":
            result = fused.by_name[result.operands[0]]
        if result.opcode == "fusion":
            called = self.program.computations[result.calls("calls")[0]]
            return self._written(called, called.root, whole)
        if result.opcode == "dynamic-update-slice":
            return self._part(whole, fused.by_name[result.operands[1]].result[0])
        passed = result.opcode in ("parameter", "custom-call", "get-tuple-element")
        return 0 if passed or result.opcode in collectives.KINDS else self._size([whole])

    def _part(self, whole: Shape, part: Shape) -> int:
        """Bytes of a part of an array, in the memory of the whole."""
        return min(self._size([part._replace(space=whole.space)]), self._size([whole]))

    def _size(self, arrays: list[Shape]) -> int:
        return sum(shape.bytes for shape in arrays if self.everywhere or shape.space == MAIN_MEMORY)


def _passes_on(user: Instruction, name: str) -> bool:
    """Whether a fused instruction takes an operand without reading it here."""
    if user.opcode == "dynamic-update-slice":
        return user.operands[0] == name
    return user.opcode in ("tuple", "custom-call", *collectives.KINDS)
