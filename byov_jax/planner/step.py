"""The real training step of a config, compiled for a machine: what it needs, and what it will take."""

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from byov_jax.planner import cost, hlo, roofline
from byov_jax.planner.cost import Cost
from byov_jax.planner.machine import Machine
from byov_jax.planner.roofline import Roofline
from byov_jax.training import build

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Step(NamedTuple):
    """A compiled step, per device unless said otherwise.

    Attributes:
      method: of the config.
      batch_size: images per step on all devices.
      steps: of the whole training.
      epochs: of the whole training.
      machine: where it runs, with the devices that it uses.
      parameters: of the student in all, weights of the posterior's mean.
      bayesian: how many of them have a variance.
      state: bytes of the training state that lie on one device.
      memory: bytes in use at the peak, arrays and program; if the compiler gave up, what it says it needs.
      allocated: bytes that are taken, with the gaps that the compiler leaves between arrays.
      cost: operations and bytes of one step; None if it does not fit, or if the compiler cannot show its
        program (libtpu 0.0.51 fails to for some slices).
      compile_seconds: how long the compiler took.
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
        """The least time of a step; None if it cannot run or be counted."""
        return roofline.of(self.cost, self.machine.chip) if self.cost is not None and self.fits else None

    @property
    def images_per_second(self) -> float | None:
        """On all devices, at most."""
        return None if self.roofline is None else self.batch_size / self.roofline.seconds

    @property
    def hours(self) -> float | None:
        """Of the whole training, at least."""
        return None if self.roofline is None else self.steps * self.roofline.seconds / 3600


def compile_step(config: Mapping[str, Any], machine: Machine) -> Step:
    """Compiles and counts; nothing is allocated and nothing runs.

    Args:
      config: complete, its data filled in, checked.
      machine: where it is going to run.
    """
    runner: Any = build.runner(config, devices=machine.devices)
    used = list(runner.mesh.devices.flat)  # one of them, if the config says so
    machine = machine._replace(devices=used, hosts=len({device.process_index for device in used}))
    posterior = runner.like().posterior
    start = time.perf_counter()
    lowered = runner.step.lower(*runner.abstract())
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        memory, counted = needed(str(error)), None
        allocated = max(memory, machine.chip.memory + 1)  # whatever the message says: it does not fit
    else:
        memory, allocated = _memory(compiled)
        counted = _counted(compiled, len(used))
    return Step(
        method=config["method"],
        batch_size=config["batch_size"],
        steps=config["steps"],
        epochs=config["steps"] * config["batch_size"] / config["data"]["size"],
        machine=machine,
        parameters=_count(posterior.mean),
        bayesian=_count(posterior.log_var),
        state=sum(_bytes_here(leaf) for leaf in jax.tree.leaves(runner.like())),
        memory=memory,
        allocated=allocated,
        cost=counted,
        compile_seconds=time.perf_counter() - start,
    )


def _counted(compiled: Any, devices: int) -> Cost | None:
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError:
        return None
    return cost.count(hlo.parse(text), devices=devices)


def needed(message: str) -> int:
    """Bytes that the compiler would have needed, from its complaint that there are not as many."""
    number = r"([0-9.]+)\s*([KMGT]?)"
    found = re.search(rf"\({number}i?B?\) exceeds|[Uu]sed {number}i?B? of", message)
    if found is None:
        return 0
    size, unit = (part for part in found.groups() if part is not None)
    return int(float(size) * _UNITS[unit])


def _memory(compiled: Any) -> tuple[int, int]:
    """Bytes in use at the peak, and allocated: state, batch, results, everything between, and the program."""
    memory = compiled.memory_analysis()
    program = memory.generated_code_size_in_bytes
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    allocated = memory.argument_size_in_bytes + results + memory.temp_size_in_bytes + program
    return min(memory.peak_memory_in_bytes + program, allocated), allocated


def _count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _bytes_here(leaf: Any) -> int:
    """Of one array, on one device."""
    shape = leaf.sharding.shard_shape(leaf.shape)
    return jax.ShapeDtypeStruct(shape, leaf.dtype).size * leaf.dtype.itemsize
