"""Where the arrays of a step lie: on one device, divided among many, or a copy on each under pmap."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SMALLEST = 2**12
"""Arrays of fewer elements are not divided: the message would cost more than the memory is worth."""


class Layout(NamedTuple):
    """What a step must know of the devices; the default is one device, or `jit` deciding by itself.

    Attributes:
      share: divides every leaf of a tree among the devices, as the state is divided.
      gather: the whole of a divided tree on every device; its gradient comes back divided.
      axis_name: the pmap axis over which gradients and statistics are averaged, None if there is none.
      one_draw: under pmap, the same weights on all devices, instead of a draw of its own on each.
    """

    share: Callable[[Any], Any] = lambda tree: tree
    gather: Callable[[Any], Any] = lambda tree: tree
    axis_name: str | None = None
    one_draw: bool = False


def over_axis(axis_name: str, *, one_draw: bool = False) -> Layout:
    """A copy of the state on each device of a pmap axis."""
    return Layout(axis_name=axis_name, one_draw=one_draw)


def divided(mesh: Mesh, *, smallest: int = SMALLEST) -> Layout:
    """The state divided among the devices of a mesh of one axis (ZeRO: Rajbhandari et al., 2020).

    Every device keeps, updates and draws the noise of its own part of the weights; before they are used, the
    drawn weights are gathered, and gradients are summed where they are kept.
    """

    def share(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(x, sharding(mesh, x.shape, smallest=smallest)), tree
        )

    @jax.custom_vjp
    def gather(tree: Any) -> Any:
        return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))

    gather.defvjp(lambda tree: (gather(tree), None), lambda _, gradient: (share(gradient),))
    return Layout(share, gather)


def sharding(mesh: Mesh, shape: tuple[int, ...], *, smallest: int = SMALLEST) -> NamedSharding:
    """How an array of the state is divided: along its longest axis that the devices divide, if there is one.

    It depends on the shape alone, so means, log-variances, moments and teacher lie alike.
    """
    size = 1
    for side in shape:
        size *= side
    axes = [axis for axis, side in enumerate(shape) if side % mesh.size == 0]
    if not axes or size < max(smallest, 1):
        return NamedSharding(mesh, PartitionSpec())
    longest = max(axes, key=lambda axis: shape[axis])
    return NamedSharding(
        mesh, PartitionSpec(*(mesh.axis_names[0] if a == longest else None for a in range(len(shape))))
    )
