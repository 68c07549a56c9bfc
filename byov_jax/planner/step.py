"""Compile the training step of a config for a machine, and report its memory, cost and time."""

import math
import re
import time
from typing import Any, NamedTuple

import jax

from byov_jax.bayes import posterior
from byov_jax.planner import cost, hlo
from byov_jax.planner.cost import Cost
from byov_jax.planner.machine import Machine
from byov_jax.planner.roofline import Roofline, roofline
from byov_jax.training import build
from byov_jax.training.config import Config

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Step(NamedTuple):
    """A compiled step; figures are per device unless stated otherwise.

    Attributes:
      method: of the config.
      batch_size: images per step on all devices.
      steps: of the whole training.
      epochs: of the whole training.
      machine: with the devices that the step uses.
      parameters: number of weights of the student, on all devices.
      bayesian: number of those with a variance.
      state: bytes of the training state.
      memory: peak bytes in use by arrays and program; if compilation ran out of memory, the bytes it reports.
      allocated: bytes allocated, including the gaps that the compiler leaves between arrays.
      cost: of one step; None if it does not fit, or if the compiler cannot print its program (libtpu 0.0.51
        fails to for some slices).
      compile_seconds: duration of compilation.
    """

    method: str
    batch_size: int
    steps: int
    epochs: float
    machine: Machine
    parameters: int
    bayesian: int
    state: int
    memory: int
    allocated: int
    cost: Cost | None
    compile_seconds: float

    @property
    def fits(self) -> bool:
        """Whether the memory of a device suffices."""
        return self.allocated <= self.machine.chip.memory

    @property
    def roofline(self) -> Roofline | None:
        """Lower bound on the time of a step; None if it does not fit or its cost is unknown."""
        return roofline(self.cost, self.machine.chip) if self.cost is not None and self.fits else None

    @property
    def images_per_second(self) -> float | None:
        """Upper bound on the throughput of all devices."""
        return None if self.roofline is None else self.batch_size / self.roofline.seconds

    @property
    def images_per_second_per_host(self) -> float:
        """Throughput at which each host must supply images to keep its devices busy."""
        return (self.images_per_second or 0.0) / self.machine.hosts

    @property
    def hours(self) -> float | None:
        """Lower bound on the time of the whole training."""
        return None if self.roofline is None else self.steps * self.roofline.seconds / 3600


def compile_step(config: Config, machine: Machine) -> Step:
    """Compile a step and count its cost; nothing is allocated or run.

    Args:
      config: with the data filled in.
      machine: to compile for.
    """
    runner: Any = build.runner(config, devices=machine.devices)
    machine = machine._replace(devices=list(runner.mesh.devices.flat))  # one of them in plain mode
    state = runner.abstract_state()
    start = time.perf_counter()
    lowered = runner.step.lower(*runner.abstract_inputs())
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        memory, step_cost = memory_needed(str(error)), None
        allocated = max(memory, machine.chip.memory + 1)  # whatever the message says, it does not fit
    else:
        memory, allocated = _memory(compiled)
        step_cost = _cost(compiled, len(machine.devices))
    return Step(
        method=config.method,
        batch_size=config.batch_size,
        steps=config.steps,
        epochs=config.steps * config.batch_size / config.data.size,
        machine=machine,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(state.posterior.mean)),
        bayesian=posterior.size(state.posterior),
        state=sum(_bytes_per_device(leaf) for leaf in jax.tree.leaves(state)),
        memory=memory,
        allocated=allocated,
        cost=step_cost,
        compile_seconds=time.perf_counter() - start,
    )


def ratios(first: Step, second: Step) -> dict[str, float]:
    """Return the second step over the first: memory and, where known, FLOPs, bytes and time.

    `memory` compares the peaks in use, `memory_allocated` what is allocated, including gaps.
    """
    result = {}
    if first.memory:
        result["memory"] = second.memory / first.memory
        result["memory_allocated"] = second.allocated / first.allocated
    if first.cost is not None and second.cost is not None:
        result["flops"] = second.cost.flops / first.cost.flops
        result["bytes"] = second.cost.bytes / first.cost.bytes
    if first.roofline is not None and second.roofline is not None:
        result["time"] = second.roofline.seconds / first.roofline.seconds
    return result


def memory_needed(message: str) -> int:
    """Return the bytes that a compiler's out-of-memory error reports, 0 if none."""
    number = r"([0-9.]+)\s*([KMGT]?)"
    match = re.search(rf"\({number}i?B?\) exceeds|[Uu]sed {number}i?B? of", message)
    if match is None:
        return 0
    value, unit = (part for part in match.groups() if part is not None)
    return int(float(value) * _UNITS[unit])


def _cost(compiled: Any, devices: int) -> Cost | None:
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError:
        return None
    return cost.count(hlo.parse(text), devices=devices)


def _memory(compiled: Any) -> tuple[int, int]:
    """Return the peak bytes in use and the bytes allocated for arguments, results, temporaries, program."""
    memory = compiled.memory_analysis()
    program = memory.generated_code_size_in_bytes
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    allocated = memory.argument_size_in_bytes + results + memory.temp_size_in_bytes + program
    return min(memory.peak_memory_in_bytes + program, allocated), allocated


def _bytes_per_device(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
