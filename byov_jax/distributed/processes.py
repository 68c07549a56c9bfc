"""Coordinate the processes of one run: the main process writes, and all agree on results and failures."""

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from byov_jax.errors import RunError

_MAX_MESSAGE_BYTES = 2000


def is_main() -> bool:
    """Return whether this process writes files and prints."""
    return jax.process_index() == 0


def run_on_main(work: Callable[[], object]) -> None:
    """Run `work` in the main process while the others wait; if it fails, all of them raise."""

    def run() -> int:
        work()
        return 0

    broadcast_from_main(run)


def broadcast_from_main(work: Callable[[], int]) -> int:
    """Run `work` in the main process and return its result in all; if it fails, all raise a RunError.

    Only a RunError and an OSError are broadcast.
    """
    if jax.process_count() == 1:
        return work()
    result, failure = 0, b""
    if is_main():
        try:
            result = work()
        except (RunError, OSError) as error:
            failure = str(error).encode()[:_MAX_MESSAGE_BYTES]
    message = np.frombuffer(failure.ljust(_MAX_MESSAGE_BYTES, b"\0"), np.uint8)
    result, message = multihost_utils.broadcast_one_to_all((np.int32(result), message))
    failure = bytes(np.asarray(message)).rstrip(b"\0")
    if failure:
        raise RunError(failure.decode(errors="replace"))
    return int(result)


def any_process(flag: bool) -> bool:
    """Return whether the flag is set in any process; a collective that blocks."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


class Consensus:
    """An all-reduce of one integer per step whose result arrives `delay` steps later, so that no step blocks.

    With one process there is no delay.
    """

    def __init__(self, mesh: Mesh, delay: int) -> None:
        self._delay = delay
        self._pending: deque[Any] = deque()
        self._by_device = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
        self._max = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def max(self, value: int) -> int:
        """Return the maximum of the values that the processes passed `delay` steps ago, 0 before that."""
        if jax.process_count() == 1:
            return value
        local = np.full(jax.local_device_count(), value, np.int32)
        self._pending.append(self._max(jax.make_array_from_process_local_data(self._by_device, local)))
        return int(self._pending.popleft()) if len(self._pending) > self._delay else 0
