"""Apply a network to any number of images on all devices of all processes, each image exactly once."""

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from byov_jax.distributed.runner import AXIS, local_rows

PER_DEVICE = 128
"""Images per device and batch."""


def apply_sharded(mesh: Mesh, apply: Any, variables: Any, images: Any, rows: np.ndarray) -> Any:
    """Return `apply(variables, images[rows])` in NumPy arrays [len(rows), ...], the same in every process.

    Args:
      mesh: the devices; all of their processes must call this.
      apply: compiled once per function object.
      variables: on the devices of the mesh.
      images: a uint8 array [n, height, width, channels], or one that decodes on indexing; each process reads
        only the rows of its own devices.
      rows: indices into `images`.
    """
    size = mesh.size * min(PER_DEVICE, -(-len(rows) // mesh.size))
    local, by_row = local_rows(mesh, size), NamedSharding(mesh, PartitionSpec(AXIS))
    compute = _compiled(apply, mesh)
    outputs = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        padded = np.pad(part, (0, size - len(part)), mode="edge")  # the padding is dropped at the end
        batch = jax.make_array_from_process_local_data(by_row, np.asarray(images[padded[local]]))
        outputs.append(jax.device_get(compute(variables, batch)))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(rows)], *outputs)


@lru_cache(maxsize=16)
def _compiled(apply: Any, mesh: Mesh) -> Any:
    return jax.jit(apply, out_shardings=NamedSharding(mesh, PartitionSpec()))
