"""What a caller of `train` may be told of, and ask for."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Callbacks(NamedTuple):
    """What a caller hears of; the defaults are deaf.

    Attributes:
      step: called with the number of every step.
      line: called with every line of metrics.jsonl.
      warning: called with a text that must not be missed.
      stop: asked after every step; a number other than 0, such as that of a signal, saves the state and ends
        the training.
    """

    step: Callable[[int], None] = lambda step: None
    line: Callable[[dict[str, Any]], None] = lambda line: None
    warning: Callable[[str], None] = lambda text: None
    stop: Callable[[], int] = lambda: 0
