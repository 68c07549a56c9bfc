"""Where the arrays of a step lie: on one device, divided among many, or a copy on each under pmap."""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from byov_jax.methods.layout import Layout

MIN_SHARDED_SIZE = 2**12
"""Arrays of fewer elements are not divided: the message would cost more than the memory is worth."""


def pmapped(axis_name: str, *, one_draw: bool = False) -> Layout:
    """A copy of the state on each device of a pmap axis."""
    return Layout(axis_name=axis_name, one_draw=one_draw)


def sharded(mesh: Mesh, *, smallest: int = MIN_SHARDED_SIZE) -> Layout:
    """The state divided among the devices of a mesh of one axis (ZeRO: Rajbhandari et al., 2020).

    Every device keeps, updates and draws the noise of its own part of the weights; before they are used, the
    drawn weights are gathered, and gradients are summed where they are kept.
    """

    def shard(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(x, sharding(mesh, x.shape, smallest=smallest)), tree
        )

    @jax.custom_vjp
    def gather(tree: Any) -> Any:
        return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))

    gather.defvjp(lambda tree: (gather(tree), None), lambda _, gradient: (shard(gradient),))
    return Layout(shard, gather)


def sharding(mesh: Mesh, shape: tuple[int, ...], *, smallest: int = MIN_SHARDED_SIZE) -> NamedSharding:
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
