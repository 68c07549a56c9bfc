"""Programs compiled for the simulated devices, and their cost."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from byov_jax.planner import cost, hlo

DEVICES = 8


def compiled_text(function, *arguments):
    """Return the text of the compiled program."""
    return jax.jit(function).lower(*arguments).compile().as_text()


def count(function, *arguments, devices=1, **settings):
    return cost.count(hlo.parse(compiled_text(function, *arguments)), devices=devices, **settings)


def array(*sizes, dtype="float32", spec=None):
    """Return an abstract array, on one device or sharded over all by `spec`."""
    if spec is None:
        return jax.ShapeDtypeStruct(sizes, dtype)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
