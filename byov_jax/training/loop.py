"""The training loop: dispatch the compiled step over batches, a few steps ahead of the devices."""

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from byov_jax.distributed.runner import Placed, Runner
from byov_jax.methods.objectives import Batch
from byov_jax.methods.state import Info

MAX_STEPS_AHEAD = 2


class Progress(NamedTuple):
    """The state after `step` optimizer steps, and the diagnostics of the last one."""

    step: int
    placed: Placed
    info: Info


class Keys(NamedTuple):
    """The root keys of a run: one for the initial state, one for all steps."""

    init: Array
    steps: Array


def keys(seed: int, prng: str = "threefry2x32", sharding: Any = None) -> Keys:
    """Return the keys of a seed.

    Args:
      seed: decides initialisation, views and weight draws.
      prng: JAX's name of the generator: "threefry2x32", "rbg" or "unsafe_rbg".
      sharding: where to put them; the default device if None.
    """
    return _make_keys(seed, prng, sharding)()


@lru_cache(maxsize=16)
def _make_keys(seed: int, prng: str, sharding: Any) -> Callable[[], Keys]:
    return jax.jit(lambda: Keys(*jax.random.split(jax.random.key(seed, impl=prng))), out_shardings=sharding)


def run_steps(
    runner: Runner,
    placed: Placed,
    batches: Iterable[Batch],
    key: Array,
    *,
    first: int,
    compiling: Callable[[str], AbstractContextManager[None]] = lambda what: nullcontext(),
) -> Iterator[Progress]:
    """Train on every batch, and yield after every step.

    The host runs at most `MAX_STEPS_AHEAD` steps ahead: enough to keep the devices busy, without a long queue
    to wait for when the loop is stopped.

    Args:
      runner: the method on its devices.
      placed: the initial state, which is donated.
      batches: one per step, on the devices.
      key: `Keys.steps`.
      first: optimizer steps taken before.
      compiling: as in `Callbacks`.

    Yields:
      `Progress`; its state is donated to the next step.
    """
    queue: deque[Info] = deque()
    for step, batch in enumerate(batches, start=first + 1):
        if step == first + 1:
            with compiling("the training step"), paused_collection():
                placed, info = runner.step(placed, batch, key)
        else:
            placed, info = runner.step(placed, batch, key)
        queue.append(info)
        if len(queue) > MAX_STEPS_AHEAD:
            jax.block_until_ready(queue.popleft())
        yield Progress(step, placed, info)


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the search for unreachable cycles, a third of the time of tracing: what that makes stays."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
