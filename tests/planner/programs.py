"""Programs compiled for the simulated devices, and what the planner counts in them."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from byov_jax.planner import cost, hlo

DEVICES = 8


def text(function, *arguments):
    """The compiled program, as users compile: `optimized` is a fixture of all tests here."""
    return jax.jit(function).lower(*arguments).compile().as_text()


def count(function, *arguments, devices=1, **settings):
    return cost.count(hlo.parse(text(function, *arguments)), devices=devices, **settings)


def array(*sizes, dtype="float32", spec=None):
    """An array that is never made, on one device or divided among all by `spec`."""
    if spec is None:
        return jax.ShapeDtypeStruct(sizes, dtype)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
