"""Plans for programs to read: plain dicts that JSON can hold."""

from dataclasses import asdict
from typing import Any

from byov_jax.planner import roofline
from byov_jax.planner.chips import Chip
from byov_jax.planner.step import Step


def of_step(step: Step) -> dict[str, Any]:
    """A step; operations, bytes and memory are those of one device."""
    cost, line = step.cost, step.roofline
    counted = None if cost is None else asdict(cost) | {"flops_per_byte": roofline.intensity(cost)}
    return {
        "method": step.method,
        "batch_size": step.batch_size,
        "topology": step.machine.name,
        "devices": len(step.machine.devices),
        "hosts": step.machine.hosts,
        "parameters": step.parameters,
        "bayesian_parameters": step.bayesian,
        "fits": step.fits,
        "memory_bytes": step.memory,
        "memory_allocated_bytes": step.allocated,
        "memory_available_bytes": step.machine.chip.memory,
        "state_bytes": step.state,
        "cost": counted,
        "seconds": None if line is None else {**line._asdict(), "at_least": line.seconds},
        "limit": None if line is None else line.limit,
        "images_per_second": step.images_per_second,
        "steps": step.steps,
        "epochs": step.epochs,
        "hours": step.hours,
        "compile_seconds": round(step.compile_seconds, 1),
    }


def of_chip(chip: Chip) -> dict[str, Any]:
    """The peak figures that a plan was made with."""
    return {key: value for key, value in chip._asdict().items() if key != "shapes"}


def ratios(first: Step, second: Step) -> dict[str, float]:
    """The second method over the first: memory and, as far as they are known, operations, bytes and time.

    `memory` compares what is in use at the peak, `memory_allocated` what is taken, with the gaps.
    """
    found = {}
    if first.memory:
        found["memory"] = second.memory / first.memory
        found["memory_allocated"] = second.allocated / first.allocated
    if first.cost is not None and second.cost is not None:
        found |= {
            "flops": second.cost.flops / first.cost.flops,
            "bytes": second.cost.bytes / first.cost.bytes,
        }
    if first.roofline is not None and second.roofline is not None:
        found["time"] = second.roofline.seconds / first.roofline.seconds
    return found


def images_needed(step: Step) -> float:
    """Images per second that each host must make for the devices never to wait."""
    return (step.images_per_second or 0.0) / step.machine.hosts
