"""Count the programs that JAX compiles."""

from collections.abc import Callable
from typing import Any

import jax

EVENT = "/jax/core/compile/backend_compile_duration"


def of_two_calls(call: Callable[[], Any]) -> tuple[int, int]:
    """Count what the first and the second call compile, from empty caches."""
    jax.clear_caches()
    return of_call(call), of_call(call)


def of_call(call: Callable[[], Any]) -> int:
    """Count what a call compiles, until its results are there."""
    events: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(call())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return events.count(EVENT)
