"""Plans for people to read: tables of text."""

import math
from collections.abc import Sequence

from byov_jax.planner import record, roofline
from byov_jax.planner.change import Change
from byov_jax.planner.machine import Machine
from byov_jax.planner.step import Step

RATIOS = {
    "memory in use at the peak": "memory",
    "  taken, with gaps between arrays": "memory_allocated",
    "FLOPs": "flops",
    "bytes to and from memory": "bytes",
    "time at least": "time",
}
"""Rows beside which the ratio of two methods stands."""


def describe(machine: Machine) -> str:
    """What a machine is, in two lines."""
    chip, counts = machine.chip, (len(machine.devices), machine.hosts)
    devices, hosts = (
        f"{n} {word}{'s' if n > 1 else ''}" for n, word in zip(counts, ("device", "host"), strict=True)
    )
    return (
        f"{machine.name}: {devices} on {hosts}, {chip.name}\n"
        f"each at most {_scaled(chip.flops, 'FLOP/s')}, {_scaled(chip.bandwidth, 'B/s')} of memory, "
        f"{_scaled(chip.link, 'B/s')} of links, {_size(chip.memory)} ({chip.source})"
    )


def methods(steps: Sequence[Step]) -> str:
    """One column for each method, and their ratio if there are two."""
    columns = [_column(step) for step in steps]
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [("a step on each device", *(step.method for step in steps))]
    rows += [(label, *(column.get(label, "") for column in columns)) for label in labels]
    if len(steps) == 2:
        ratio = record.ratios(*steps)
        beside = [ratio.get(RATIOS.get(row[0], "")) for row in rows]
        texts = ["" if value is None else f"{value:.4f}" for value in beside]
        texts[0] = f"{steps[1].method} / {steps[0].method}"
        rows = [(*row, text) for row, text in zip(rows, texts, strict=True)]
    return _aligned(rows)


def _column(step: Step) -> dict[str, str]:
    chip, cost, line = step.machine.chip, step.cost, step.roofline
    column = {
        "memory in use at the peak": _size(step.memory),
        "  taken, with gaps between arrays": _allocated(step),
        "  of it the training state": _size(step.state),
        "parameters": f"{step.parameters:,}",
        "  of them Bayesian": f"{step.bayesian:,}",
    }
    if cost is None or line is None:
        unknown = {"FLOPs, bytes, time": "unknown: the compiler cannot show its program"}
        return column | (unknown if step.fits else {})
    column |= {
        "FLOPs": _scaled(cost.flops, ""),
        "bytes to and from memory": _scaled(cost.bytes, "B"),
        **{f"  {kind}": _scaled(size, "B") for kind, size in sorted(cost.collectives.items())},
        f"FLOPs per byte ({chip.flops / chip.bandwidth:.0f} at the ridge)": f"{roofline.intensity(cost):.0f}",
    }
    if cost.unknown_loops:
        column["loops of unknown length, counted once"] = str(cost.unknown_loops)
    column |= {f"  {words}": _scaled(getattr(line, key), "s") for key, words in roofline.LIMITS.items()}
    return column | {
        "time at least": _scaled(line.seconds, "s"),
        "  limited by": roofline.LIMITS[line.limit],
        "images/s on all devices, at most": f"{step.images_per_second:,.0f}",
        f"hours for {step.epochs:,.4g} epochs, at least": f"{step.hours:,.3g}",
    }


def comparison(kind: str, changes: Sequence[Change], steps: Sequence[Step]) -> str:
    """One row for each variant."""
    rows = [
        (kind, "devices", "memory", "FLOPs", "bytes", "FLOPs/byte", "time", "limited by", "images/s", "hours")
    ]
    for change, step in zip(changes, steps, strict=True):
        label = step.machine.name if kind == "mesh" else str(next(iter(change.values.values())))
        cost, line = step.cost, step.roofline
        numbers = ("",) * 7
        if cost is not None and line is not None:
            numbers = (
                _scaled(cost.flops, ""),
                _scaled(cost.bytes, "B"),
                f"{roofline.intensity(cost):.0f}",
                _scaled(line.seconds, "s"),
                roofline.LIMITS[line.limit],
                f"{step.images_per_second:,.0f}",
                f"{step.hours:,.3g}",
            )
        rows.append((label, str(len(step.machine.devices)), _allocated(step), *numbers))
    return _aligned(rows)


def feeding(step: Step, rate: float) -> str:
    """Whether the hosts can feed a step, from the images per second that one core of this machine makes."""
    needed = record.images_needed(step)
    cores = step.machine.chip.host_cores
    there = "" if cores is None else f"; it has {cores} vCPUs"
    return (
        f"each host must make {needed:,.0f} images/s for {step.method}: {needed / rate:,.1f} cores at the "
        f"{rate:,.0f} images/s that one core of this machine decodes and crops{there}"
    )


def _allocated(step: Step) -> str:
    there = f"{_size(step.allocated)} of {_size(step.machine.chip.memory)}"
    return there if step.fits else f"{there}: does not fit"


def _size(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**27 else f"{size / 2**20:,.2f} MiB"


def _scaled(value: float, unit: str) -> str:
    """Four digits of a number, with a prefix for its thousands."""
    thousands = min(max(math.floor(math.log10(value) / 3), -2), 4) if value > 0.0 else 0
    prefix = ("µ", "m", "", "k", "M", "G", "T")[thousands + 2]
    return f"{value / 1000.0**thousands:,.4g} {prefix}{unit}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
