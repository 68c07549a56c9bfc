"""How a training looks: a bar with the time left on a terminal, lines elsewhere; Ctrl-C stops gently."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

from byov_jax.cli import signals
from byov_jax.distributed import processes
from byov_jax.training.callbacks import Callbacks

SHOWN = {
    "loss": "loss {:.3f}",
    "probe": "probe {:.1%}",
    "knn": "knn {:.1%}",
    "embedding_std": "std {:.2f}",
    "kl_per_weight": "kl/weight {:.2f}",
    "beta": "beta {:.2f}",
    "images_per_second": "{:,.0f} images/s",
}
"""What of a line is shown; a narrow terminal shows the first of them."""

BAR = "{desc} {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


@contextmanager
def training(label: str, first: int, steps: int) -> Iterator[Callbacks]:
    """A listener that shows how a training goes, and stops it after the step in which a signal comes."""
    terminal = sys.stderr.isatty() and processes.is_main()
    bar = tqdm(
        total=steps, initial=first, desc=label, bar_format=BAR, disable=not terminal, dynamic_ncols=True
    )
    bar.set_postfix_str("compiling" if first < steps else "")
    seen: dict[str, Any] = {}

    def heard(text: str) -> None:
        with suppress(RuntimeError):  # the signal may have come while the same stream was written to
            bar.write(f"{label}: {text}", file=sys.stderr)

    def line(values: dict[str, Any]) -> None:
        seen.update(values)
        texts = [form.format(seen[name]) for name, form in SHOWN.items() if seen.get(name) is not None]
        if terminal:
            if values["step"] == 0:  # nothing moves until the step is compiled
                texts.insert(0, "compiling")
            bar.set_postfix_str(_fitting(texts, shutil.get_terminal_size().columns - _head(label, steps)))
        else:
            step = f"step {values['step']:>{len(str(steps))}}/{steps}"
            print("  ".join([label, step, *texts, *_left(seen, steps)]), flush=True)

    try:
        with signals.gently(heard) as asked:
            yield Callbacks(
                step=lambda step: bar.update(step - bar.n),
                line=line,
                warning=lambda text: bar.write(f"\nWARNING: {label}: {text}\n", file=sys.stderr),
                stop=asked,
            )
    finally:
        bar.close()


def _head(label: str, steps: int) -> int:
    """Columns that the bar takes beside the numbers, with times of less than ten hours."""
    return len(f"{label} 100%|{' ' * 10}| {steps}/{steps} [0:00:00<0:00:00, ]") + 1


def _fitting(texts: list[str], columns: int) -> str:
    """As many of the texts as there is room for, the first ones."""
    count = len(texts)
    while count > 1 and len("  ".join(texts[:count])) > columns:
        count -= 1
    return "  ".join(texts[:count])


def _left(seen: dict[str, Any], steps: int) -> list[str]:
    """The time left, as far as one can tell from the time so far."""
    step, seconds = seen["step"], seen.get("seconds")
    if not step or not seconds or step >= steps:
        return []
    minutes, rest = divmod(round(seconds / step * (steps - step)), 60)
    return [f"{minutes}:{rest:02} left"]
