"""The loop: one compiled step over batches that are on the devices, a little ahead of them."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from byov_jax.distributed.runner import Placed, Runner
from byov_jax.methods.objectives import Batch
from byov_jax.methods.step import Info

MAX_STEPS_AHEAD = 2


class Progress(NamedTuple):
    """Where a run is: the state after `step` optimizer steps, and what the last of them showed."""

    step: int
    placed: Placed
    info: Info


class Keys(NamedTuple):
    """Where all randomness of a run comes from: one key for the initial state, one for all steps."""

    init: Array
    steps: Array


def keys(seed: int, prng: str = "threefry2x32", sharding: Any = None) -> Keys:
    """The keys of a seed.

    Args:
      seed: decides initialisation, views and weight draws.
      prng: JAX's name of the generator: "threefry2x32", "rbg" or "unsafe_rbg".
      sharding: where to put them; the default device if None.
    """
    make = jax.jit(lambda: Keys(*jax.random.split(jax.random.key(seed, impl=prng))), out_shardings=sharding)
    return make()


def run_steps(
    runner: Runner, placed: Placed, batches: Iterable[Batch], key: Array, *, first: int
) -> Iterator[Progress]:
    """Trains on every batch; yields after every step.

    The host runs at most `AHEAD` steps ahead of the devices: enough to keep them busy, and whoever stops the
    loop need not wait for a long queue.

    Args:
      runner: the method on its devices.
      placed: where to begin. It is donated.
      batches: on the devices, one for each step.
      key: `Keys.steps`.
      first: optimizer steps that were taken before.

    Yields:
      `Progress`. Its state is donated to the next step: read what you need before going on.
    """
    queue: deque[Info] = deque()
    for step, batch in enumerate(batches, start=first + 1):
        placed, info = runner.step(placed, batch, key)
        queue.append(info)
        if len(queue) > MAX_STEPS_AHEAD:
            jax.block_until_ready(queue.popleft())
        yield Progress(step, placed, info)
