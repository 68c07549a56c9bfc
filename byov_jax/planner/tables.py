"""Plans as text tables and as JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from byov_jax.planner.changes import Change
from byov_jax.planner.machine import Machine
from byov_jax.planner.roofline import RESOURCES, arithmetic_intensity
from byov_jax.planner.step import Step, ratios

METHOD = "a step on each device"
MEMORY, ALLOCATED = "memory in use at the peak", "  allocated, with gaps between arrays"
FLOPS, BYTES, INTENSITY = "FLOPs", "bytes to and from memory", "FLOPs per byte"
TIME, LIMIT = "time at least", "  limited by"
IMAGES, HOURS = "images/s on all devices, at most", "hours, at least"
RATIOS = {
    MEMORY: "memory",
    ALLOCATED: "memory_allocated",
    FLOPS: "flops",
    BYTES: "bytes",
    TIME: "time",
}
"""Keys of `step.ratios` by row."""
COMPARED = {
    "memory": ALLOCATED,
    "FLOPs": FLOPS,
    "bytes": BYTES,
    "FLOPs/byte": INTENSITY,
    "time": TIME,
    "limited by": LIMIT,
    "images/s": IMAGES,
    "hours": HOURS,
}
"""Rows of `methods_table` by column of `comparison_table`."""


def machine_summary(machine: Machine) -> str:
    """Return the devices of a machine and their peak figures, in two lines."""
    chip, counts = machine.chip, (len(machine.devices), machine.hosts)
    devices, hosts = (
        f"{n} {word}{'s' if n > 1 else ''}" for n, word in zip(counts, ("device", "host"), strict=True)
    )
    return (
        f"{machine.name}: {devices} on {hosts}, {chip.name}\n"
        f"each at most {_scaled(chip.flops, 'FLOP/s')}, {_scaled(chip.bandwidth, 'B/s')} of memory, "
        f"{_scaled(chip.link, 'B/s')} of links, {_gib(chip.memory)} ({chip.source})"
    )


def methods_table(steps: Sequence[Step]) -> str:
    """Return a table with a column per method, and their ratio if there are two."""
    columns = [_column(step) for step in steps]
    rows = dict.fromkeys(row for column in columns for row in column)
    if len(steps) == 2:
        values = ratios(*steps)
        ratio = {row: f"{values[key]:.4f}" for row, key in RATIOS.items() if key in values}
        columns.append({METHOD: f"{steps[1].method} / {steps[0].method}"} | ratio)
    return _aligned([(row, *(column.get(row, "") for column in columns)) for row in rows])


def comparison_table(kind: str, changes: Sequence[Change], steps: Sequence[Step]) -> str:
    """Return a table with a row per change."""
    rows: list[tuple[str, ...]] = [(kind, "devices", *COMPARED)]
    for change, step in zip(changes, steps, strict=True):
        label = step.machine.name if kind == "mesh" else str(next(iter(change.values.values())))
        column = _column(step)
        figures = (column.get(row, "") for row in COMPARED.values())
        rows.append((label, str(len(step.machine.devices)), *figures))
    return _aligned(rows)


def input_summary(step: Step, rate: float) -> str:
    """Compare the images/s that each host must supply with the `rate` of one core of this machine."""
    needed = step.images_per_second_per_host
    cores = step.machine.chip.host_cores
    available = "" if cores is None else f"; it has {cores} vCPUs"
    return (
        f"each host must supply {needed:,.0f} images/s for {step.method}: {needed / rate:,.1f} cores at the "
        f"{rate:,.0f} images/s that one core of this machine decodes and crops{available}"
    )


def to_json(step: Step) -> dict[str, Any]:
    """Return a step as a dict for JSON; FLOPs, bytes and memory are per device."""
    cost, bound = step.cost, step.roofline
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
        "cost": None if cost is None else asdict(cost) | {"flops_per_byte": arithmetic_intensity(cost)},
        "seconds": None if bound is None else {**bound._asdict(), "at_least": bound.seconds},
        "limit": None if bound is None else bound.limit,
        "images_per_second": step.images_per_second,
        "steps": step.steps,
        "epochs": step.epochs,
        "hours": step.hours,
        "compile_seconds": round(step.compile_seconds, 1),
    }


def chip_to_json(machine: Machine) -> dict[str, Any]:
    """Return the peak figures of a machine's chip as a dict for JSON."""
    return {key: value for key, value in machine.chip._asdict().items() if key != "shapes"}


def _column(step: Step) -> dict[str, str]:
    chip, cost, bound = step.machine.chip, step.cost, step.roofline
    column = {
        METHOD: step.method,
        MEMORY: _gib(step.memory),
        ALLOCATED: _allocated(step),
        "  of it the training state": _gib(step.state),
        "parameters": f"{step.parameters:,}",
        "  of them Bayesian": f"{step.bayesian:,}",
    }
    if cost is None or bound is None:
        unknown = {"FLOPs, bytes, time": "unknown: the compiler cannot print its program"}
        return column | (unknown if step.fits else {})
    column |= {
        FLOPS: _scaled(cost.flops, ""),
        BYTES: _scaled(cost.bytes, "B"),
        **{f"  {kind}": _scaled(nbytes, "B") for kind, nbytes in sorted(cost.collectives.items())},
        INTENSITY: f"{arithmetic_intensity(cost):.0f}",
        "  at the ridge": f"{chip.flops / chip.bandwidth:.0f}",
    }
    if cost.unknown_loops:
        column["loops of unknown length, counted once"] = str(cost.unknown_loops)
    return column | {
        TIME: _scaled(bound.seconds, "s"),
        **{f"  {label}": _scaled(getattr(bound, name), "s") for name, label in RESOURCES.items()},
        LIMIT: RESOURCES[bound.limit],
        IMAGES: f"{step.images_per_second:,.0f}",
        "epochs": f"{step.epochs:,.4g}",
        HOURS: f"{step.hours:,.3g}",
    }


def _allocated(step: Step) -> str:
    text = f"{_gib(step.allocated)} of {_gib(step.machine.chip.memory)}"
    return text if step.fits else f"{text}: does not fit"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**27 else f"{nbytes / 2**20:,.2f} MiB"


def _scaled(value: float, unit: str) -> str:
    """Format four digits of a number with a metric prefix."""
    thousands = min(max(math.floor(math.log10(value) / 3), -2), 4) if value > 0.0 else 0
    prefix = ("µ", "m", "", "k", "M", "G", "T")[thousands + 2]
    return f"{value / 1000.0**thousands:,.4g} {prefix}{unit}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Align the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
