"""The least time of a step: that of the busiest of compute, memory and links, if all else hides behind it."""

from typing import NamedTuple

from byov_jax.planner.chips import Chip
from byov_jax.planner.cost import Cost

LIMITS = {"compute": "matrix units", "memory": "memory bandwidth", "links": "links between devices"}


class Roofline(NamedTuple):
    """Seconds that each resource is busy in one step, at its peak (Williams et al., 2009)."""

    compute: float
    memory: float
    links: float

    @property
    def seconds(self) -> float:
        """The least time of a step."""
        return max(self)

    @property
    def limit(self) -> str:
        """Which resource it is; a key of `LIMITS`."""
        return max(self._fields, key=lambda name: getattr(self, name))


def of(cost: Cost, chip: Chip) -> Roofline:
    """Of a step with this cost on this chip."""
    received = sum(cost.collectives.values())
    return Roofline(cost.flops / chip.flops, cost.bytes / chip.bandwidth, received / chip.link)


def intensity(cost: Cost) -> float:
    """Operations per byte; below `chip.flops / chip.bandwidth` the memory is the limit."""
    return cost.flops / cost.bytes if cost.bytes else float("inf")
