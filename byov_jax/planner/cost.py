"""FLOPs, bytes of memory traffic and bytes between devices of a compiled program, counted from its text.

XLA's `cost_analysis` counts the body of a loop once and includes traffic to on-chip memory. Here a body
counts once per trip, and only main memory counts. A fusion reads its operands and writes its results; of an
operand that it slices it reads the slice, and of one that it updates in place it writes the update.
"""

from collections import Counter
from dataclasses import dataclass, replace

from byov_jax.planner import operations
from byov_jax.planner.hlo import MAIN_MEMORY, Computation, Instruction, Program, Shape
from byov_jax.planner.loops import Scope


@dataclass(frozen=True)
class Cost:
    """Cost of one step on one device.

    Attributes:
      flops: of matrix products and convolutions.
      bytes: to and from main memory.
      collectives: bytes received from other devices, by kind.
      unknown_loops: number of loops whose trip count depends on data; their bodies count once.
    """

    flops: int
    bytes: int
    collectives: dict[str, int]
    unknown_loops: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of both."""
        return Cost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            dict(Counter(self.collectives) + Counter(other.collectives)),
            self.unknown_loops + other.unknown_loops,
        )

    def __mul__(self, times: int) -> "Cost":
        """Return the cost of running it several times."""
        received = {kind: nbytes * times for kind, nbytes in self.collectives.items()}
        return Cost(self.flops * times, self.bytes * times, received, self.unknown_loops)


ZERO = Cost(0, 0, {})
FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all"),
    *("partition-id", "replica-id", "add-dependency", "domain"),
)
"""Opcodes without memory traffic."""
FREE_CALLS = ("AllocateBuffer", "ConcatBitcast", "AsyncCollectiveStart", "AsyncCollectiveDone")
"""Custom calls of the TPU compiler without memory traffic."""
SLICES = ("slice", "dynamic-slice", "gather")
DATA_MOVEMENTS = ("bitcast", "pad", "convert", "copy", "reshape", "transpose")
"""Opcodes that read the same fraction of the operand as is used of the result."""


def count(program: Program, *, devices: int, loops_once: bool = False, all_memories: bool = False) -> Cost:
    """Return the cost of running the program once.

    Args:
      program: from `hlo.parse`.
      devices: number of devices that run it.
      loops_once: count the body of a loop once, as XLA does.
      all_memories: include on-chip memory, as XLA does.
    """
    counter = _Counter(program, devices, loops_once, all_memories)
    return counter.computation(Scope(program, program.computations[program.entry]))


@dataclass(frozen=True)
class _Counter:
    program: Program
    devices: int
    loops_once: bool
    all_memories: bool

    def computation(self, scope: Scope) -> Cost:
        instructions = scope.computation.instructions.values()
        return sum((self._instruction(scope, instruction) for instruction in instructions), ZERO)

    def _instruction(self, scope: Scope, instruction: Instruction) -> Cost:
        opcode = instruction.opcode
        if opcode in FREE or opcode.endswith(("-done", "-update")):
            return ZERO
        if opcode == "while":
            trips = 1 if self.loops_once else scope.trips(instruction)
            body = self._called(scope, instruction, "body", "condition")
            return body + replace(ZERO, unknown_loops=1) if trips is None else body * trips
        if opcode in ("call", "async-start"):
            return self._called(scope, instruction, "to_apply", "calls")
        if opcode == "conditional":
            names = instruction.called("branch_computations", "true_computation", "false_computation")
            branches = (Scope(self.program, self.program.computations[name]) for name in names)
            return max(map(self.computation, branches), key=lambda cost: (cost.flops, cost.bytes))
        operands = scope.computation.operand_shapes(instruction)
        if opcode == "fusion":
            fused = self._fused(instruction)
            return replace(self._fused_cost(fused), bytes=self._fusion_bytes(fused, instruction, operands))
        return Cost(
            operations.flops(instruction, operands),
            self._instruction_bytes(instruction, operands),
            self._received(instruction, operands),
        )

    def _called(self, scope: Scope, caller: Instruction, *keys: str) -> Cost:
        return sum((self.computation(scope.enter(caller, name)) for name in caller.called(*keys)), ZERO)

    def _fused(self, fusion: Instruction) -> Computation:
        return self.program.computations[fusion.called("calls")[0]]

    def _fused_cost(self, fused: Computation) -> Cost:
        """Return FLOPs and collectives within a fusion, which has no memory traffic of its own."""
        total = ZERO
        instructions = fused.instructions.values()
        # The TPU compiler distributes a collective over many fusions, in and around loops: count its start.
        starts = any(each.custom_call_target == "AsyncCollectiveStart" for each in instructions)
        for instruction in instructions:
            if instruction.opcode == "fusion":
                total += self._fused_cost(self._fused(instruction))
            elif instruction.opcode not in FREE:
                operands = fused.operand_shapes(instruction)
                counts = starts or "async_collective_fusion_config" not in instruction.attributes
                received = self._received(instruction, operands) if counts else {}
                total += Cost(operations.flops(instruction, operands), 0, received)
        return total

    def _received(self, instruction: Instruction, operands: list[Shape]) -> dict[str, int]:
        kind = instruction.opcode.removesuffix("-start")
        if kind not in operations.COLLECTIVES:
            return {}
        return {kind: operations.received_bytes(instruction, kind, operands, self.devices)}

    def _instruction_bytes(self, instruction: Instruction, operands: list[Shape]) -> int:
        """Return the memory traffic of an instruction outside of fusions."""
        opcode, result = instruction.opcode, instruction.result
        if opcode.endswith("-start") and opcode != "all-reduce-start":
            if opcode == "copy-start":
                return self._nbytes(*result[:2])
            opcode, result = opcode.removesuffix("-start"), result[len(operands) :]
        if opcode == "custom-call" and instruction.custom_call_target in FREE_CALLS:
            return 0
        if opcode in SLICES:
            return self._nbytes(*result, *operands[1:]) + self._part_bytes(operands[0], result[0])
        if opcode == "dynamic-update-slice":
            return self._nbytes(*operands[1:]) + self._part_bytes(result[0], operands[1])
        return self._nbytes(*operands, *result)

    def _fusion_bytes(self, fused: Computation, fusion: Instruction, operands: list[Shape]) -> int:
        read = sum(
            round(self._nbytes(shape) * self._fraction_used(fused, parameter))
            for parameter, shape in zip(fused.parameters, operands, strict=True)
        )
        root = fused.root
        results = fused.operands(root) if root.opcode == "tuple" else [root]
        if len(results) != len(fusion.result):
            return read + self._nbytes(*fusion.result)
        written = (self._written_bytes(fused, *pair) for pair in zip(results, fusion.result, strict=True))
        return read + sum(written)

    def _fraction_used(self, fused: Computation, value: Instruction) -> float:
        """Return the fraction of a value within a fusion that the fusion uses."""
        if value.name == fused.root_name:
            return 1.0
        return min(1.0, sum(self._fraction_used_by(fused, value, user) for user in fused.users[value.name]))

    def _fraction_used_by(self, fused: Computation, value: Instruction, user: Instruction) -> float:
        if user.opcode == "fusion":
            inner = self._fused(user)
            parameters = zip(inner.parameters, user.operands, strict=True)
            used = sum(self._fraction_used(inner, each) for each, name in parameters if name == value.name)
            return used * self._fraction_used(fused, user)
        if user.operands[0] == value.name:
            if user.opcode in SLICES:
                fraction = user.result[0].size / max(value.result[0].size, 1)
                return fraction * self._fraction_used(fused, user)
            if user.opcode in DATA_MOVEMENTS:
                return self._fraction_used(fused, user)
            if user.opcode == "convolution":
                return operations.fraction_read(user, value.result[0])
            if user.opcode == "dynamic-update-slice":
                return 0.0  # updated in place
        return 0.0 if user.opcode in ("tuple", "custom-call", *operations.COLLECTIVES) else 1.0

    def _written_bytes(self, fused: Computation, result: Instruction, whole: Shape) -> int:
        """Return the bytes of a result that a fusion writes: of an update in place, those of the update."""
        while result.opcode == "bitcast":
            (result,) = fused.operands(result)
        if result.opcode == "fusion":
            inner = self._fused(result)
            return self._written_bytes(inner, inner.root, whole)
        if result.opcode == "dynamic-update-slice":
            return self._part_bytes(whole, fused.operands(result)[1].result[0])
        unwritten = ("parameter", "custom-call", "get-tuple-element", *operations.COLLECTIVES)
        return 0 if result.opcode in unwritten else self._nbytes(whole)

    def _part_bytes(self, whole: Shape, part: Shape) -> int:
        """Return the bytes of a part of an array, in the memory of the whole."""
        return min(self._nbytes(part._replace(memory_space=whole.memory_space)), self._nbytes(whole))

    def _nbytes(self, *arrays: Shape) -> int:
        return sum(a.nbytes for a in arrays if self.all_memories or a.memory_space == MAIN_MEMORY)
