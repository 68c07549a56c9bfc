"""Apply a network to any number of images on all devices of all processes, each image exactly once."""

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from byov_jax.distributed import runner

PER_DEVICE = 128
"""Images that a device is given at a time."""


def apply_sharded(mesh: Mesh, apply: Any, variables: Any, images: Any, rows: np.ndarray) -> Any:
    """`apply(variables, images[rows])`, in NumPy arrays [len(rows), ...], the same in every process.

    Args:
      mesh: the devices; all of their processes must call this.
      apply: its identity is that of the compiled program.
      variables: on the devices of the mesh.
      images: a uint8 array [n, height, width, channels], or what decodes like one; each process asks for the
        rows of its own devices only.
      rows: which of them.
    """
    size = mesh.size * min(PER_DEVICE, -(-len(rows) // mesh.size))
    here = runner.local_rows(mesh, size)
    compute = _compiled(apply, mesh)
    found = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        padded = np.pad(part, (0, size - len(part)), mode="edge")  # what is too much is dropped at the end
        batch = runner.put_rows(mesh, np.asarray(images[padded[here]]))
        found.append(jax.device_get(compute(variables, batch)))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(rows)], *found)


@lru_cache(maxsize=16)
def _compiled(apply: Any, mesh: Mesh) -> Any:
    return jax.jit(apply, out_shardings=NamedSharding(mesh, PartitionSpec()))
