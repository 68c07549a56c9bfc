"""Several processes of one run: who writes, and how all of them learn what one of them found out."""

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from byov_jax.errors import RunError

_LONGEST = 2000


def is_main() -> bool:
    """Whether this process is the one that writes files and talks to the user."""
    return jax.process_index() == 0


def run_on_main(work: Callable[[], object]) -> None:
    """The first process does the work, the others wait; if it fails, all of them do."""

    def done() -> int:
        work()
        return 0

    broadcast_from_main(done)


def broadcast_from_main(work: Callable[[], int]) -> int:
    """What the first process finds out, in all of them; if it fails, all of them do, with a RunError.

    Failures are those of run directories and of the file system.
    """
    if jax.process_count() == 1:
        return work()
    number, said = 0, b""
    if is_main():
        try:
            number = work()
        except (RunError, OSError) as error:
            said = str(error).encode()[:_LONGEST]
    message = np.frombuffer(said.ljust(_LONGEST, b"\0"), np.uint8)
    number, message = multihost_utils.broadcast_one_to_all((np.int32(number), message))
    heard = bytes(np.asarray(message)).rstrip(b"\0")
    if heard:
        raise RunError(heard.decode(errors="replace"))
    return int(number)


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all of them wait for the answer."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


class Consensus:
    """A question that every process answers at every step, and an answer that all of them get alike.

    The answer comes a few steps later, so that no step waits for a message; with one process, at once.
    """

    def __init__(self, mesh: Mesh, later: int) -> None:
        """`later` is the number of steps after which an answer is looked at."""
        self._mesh, self._later = mesh, later
        self._answers: deque[Any] = deque()
        self._greatest = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def greatest(self, number: int) -> int:
        """The greatest number that a process gave `later` steps ago, 0 before that."""
        if jax.process_count() == 1:
            return number
        mine = np.full(jax.local_device_count(), number, np.int32)
        self._answers.append(self._greatest(jax.make_array_from_process_local_data(self._by_row, mine)))
        return int(self._answers.popleft()) if len(self._answers) > self._later else 0

    @property
    def _by_row(self) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names[0]))
