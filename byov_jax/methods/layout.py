"""What a step must know of the devices it runs on; `distributed` makes the layouts."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Layout(NamedTuple):
    """How the arrays of a step are placed; the default is one device, or `jit` deciding by itself.

    Attributes:
      shard: divides every leaf of a tree among the devices, as the state is divided.
      gather: the whole of a sharded tree on every device; its gradient comes back sharded.
      axis_name: the pmap axis over which gradients and statistics are averaged, None if there is none.
      one_draw: under pmap, the same weights on all devices, instead of a draw per device.
    """

    shard: Callable[[Any], Any] = lambda tree: tree
    gather: Callable[[Any], Any] = lambda tree: tree
    axis_name: str | None = None
    one_draw: bool = False
