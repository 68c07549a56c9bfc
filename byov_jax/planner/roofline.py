"""Roofline model: the lower bound on the time of a step, set by the busiest of compute, memory and links."""

from typing import NamedTuple

from byov_jax.planner.chips import Chip
from byov_jax.planner.cost import Cost

RESOURCES = {"compute": "matrix units", "memory": "memory bandwidth", "links": "links between devices"}


class Roofline(NamedTuple):
    """Seconds per step for which each resource is busy at its peak rate (Williams et al., 2009)."""

    compute: float
    memory: float
    links: float

    @property
    def seconds(self) -> float:
        """Lower bound on the time of a step: the resources overlap perfectly."""
        return max(self)

    @property
    def limit(self) -> str:
        """The busiest resource, a key of `RESOURCES`."""
        return max(self._fields, key=lambda name: getattr(self, name))


def roofline(cost: Cost, chip: Chip) -> Roofline:
    """Return the roofline of a step with this cost on this chip."""
    received = sum(cost.collectives.values())
    return Roofline(cost.flops / chip.flops, cost.bytes / chip.bandwidth, received / chip.link)


def arithmetic_intensity(cost: Cost) -> float:
    """Return FLOPs per byte; below `chip.flops / chip.bandwidth` the step is limited by memory."""
    return cost.flops / cost.bytes if cost.bytes else float("inf")
