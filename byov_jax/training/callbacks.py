"""Functions that a caller of `train` passes to follow a training and to stop it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple


class Callbacks(NamedTuple):
    """Called during a training; each is a no-op by default.

    Attributes:
      step: called with the number of every step.
      metrics: called with every line of metrics.jsonl.
      warning: called with a text that must not be missed.
      stop: asked after every step; a number other than 0, such as that of a signal, saves the state and ends
        the training.
      compiling: called with what is about to be compiled; the context that it returns ends afterwards.
    """

    step: Callable[[int], None] = lambda step: None
    metrics: Callable[[dict[str, Any]], None] = lambda line: None
    warning: Callable[[str], None] = lambda text: None
    stop: Callable[[], int] = lambda: 0
    compiling: Callable[[str], AbstractContextManager[None]] = lambda what: nullcontext()
