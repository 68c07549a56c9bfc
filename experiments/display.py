"""How a training looks: a bar with the time left on a terminal, lines elsewhere; Ctrl-C stops gently."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from byov_jax.run import Listener

SHOWN = {
    "loss": "loss {:.3f}",
    "kl_per_weight": "kl/weight {:.2f}",
    "beta": "beta {:.2f}",
    "embedding_std": "std {:.2f}",
    "probe": "probe {:.1%}",
    "knn": "knn {:.1%}",
    "images_per_second": "{:,.0f} images/s",
}


@contextmanager
def training(label: str, first: int, steps: int) -> Iterator[Listener]:
    """A listener that shows how a training goes, and stops it after the step in which Ctrl-C is pressed.

    A second Ctrl-C interrupts at once.
    """
    terminal = sys.stderr.isatty()
    bar = tqdm(total=steps, initial=first, desc=label, unit="step", disable=not terminal, dynamic_ncols=True)
    seen: dict[str, Any] = {}
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        bar.write(f"{label}: stopping after this step; Ctrl-C again stops at once", file=sys.stderr)

    def line(values: dict[str, Any]) -> None:
        seen.update(values)
        text = "  ".join(
            form.format(seen[name]) for name, form in SHOWN.items() if seen.get(name) is not None
        )
        if terminal:
            bar.set_postfix_str(text)
        else:
            left = _left(seen, steps)
            print(f"{label}  step {values['step']:>{len(str(steps))}}/{steps}  {text}{left}", flush=True)

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield Listener(
            step=lambda step: bar.update(step - bar.n),
            line=line,
            warning=lambda text: bar.write(f"\nWARNING: {label}: {text}\n", file=sys.stderr),
            stop=lambda: asked,
        )
    finally:
        signal.signal(signal.SIGINT, previous)
        bar.close()


def _left(seen: dict[str, Any], steps: int) -> str:
    """The time left, as far as one can tell from the time so far."""
    step, seconds = seen["step"], seen.get("seconds")
    if not step or not seconds or step >= steps:
        return ""
    minutes, rest = divmod(round(seconds / step * (steps - step)), 60)
    return f"  {minutes}:{rest:02} left"
