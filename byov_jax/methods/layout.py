"""The contract between a training step and the devices it runs on; `distributed` builds the layouts."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Layout(NamedTuple):
    """Placement of the arrays of a step. The defaults suit one device and plain `jit`.

    Attributes:
      shard: `tree -> tree`, constrains every leaf to the sharding of the state; None if it has none.
      gather: `tree -> tree`, all-gathers a sharded tree; its gradient is sharded again.
      axis_name: pmap axis over which gradients and statistics are averaged, or None.
      one_draw: under pmap, draw the same weights on all devices instead of separate ones on each.
    """

    shard: Callable[[Any], Any] | None = None
    gather: Callable[[Any], Any] = lambda tree: tree
    axis_name: str | None = None
    one_draw: bool = False


ONE_DEVICE = Layout()
