"""Progress of trainings and evaluations: a bar with the time left on a terminal, lines elsewhere."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

from byov_jax.cli import command, compilation
from byov_jax.distributed import processes
from byov_jax.evaluation.suite.context import Progress
from byov_jax.training.callbacks import Callbacks
from byov_jax.training.config import Config

SHOWN = {
    "loss": "loss {:.3f}",
    "probe": "probe {:.1%}",
    "knn": "knn {:.1%}",
    "embedding_std": "std {:.2f}",
    "kl_per_weight": "kl/weight {:.2f}",
    "beta": "beta {:.2f}",
    "images_per_second": "{:,.0f} images/s",
}
"""The metrics that are shown; a narrow terminal shows the first ones."""

BAR = "{desc} {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


@contextmanager
def training(label: str, first: int, config: Config) -> Iterator[Callbacks]:
    """Yield callbacks that show a training, and stop it after the step in which a signal arrives."""
    steps = config.steps
    terminal = sys.stderr.isatty() and processes.is_main()
    bar = tqdm(
        total=steps, initial=first, desc=label, bar_format=BAR, disable=not terminal, dynamic_ncols=True
    )
    bar.set_postfix_str("compiling" if first < steps else "")
    seen: dict[str, Any] = {}

    def announce(text: str) -> None:
        with suppress(RuntimeError):  # the signal may have arrived while this stream was written to
            bar.write(f"{label}: {text}", file=sys.stderr)

    def show(texts: list[str]) -> None:
        bar.set_postfix_str(_fitting(texts, shutil.get_terminal_size().columns - _head(label, steps)))

    def say(text: str) -> None:
        if terminal:  # the bar does not move until the step is compiled
            show([text, *_formatted(seen)])
        else:
            print(f"{label}  {text}", flush=True)

    @contextmanager
    def compiling(what: str) -> Iterator[None]:
        with compilation.timed(what, config, say):
            yield
        show(_formatted(seen))

    def metrics(values: dict[str, Any]) -> None:
        seen.update(values)
        texts = _formatted(seen)
        if terminal:
            show(texts)
        else:
            step = f"step {values['step']:>{len(str(steps))}}/{steps}"
            print("  ".join([label, step, *texts, *_left(seen, steps)]), flush=True)

    try:
        with command.stop_on_signal(announce) as received:
            yield Callbacks(
                step=lambda step: bar.update(step - bar.n),
                metrics=metrics,
                warning=lambda text: bar.write(f"\nWARNING: {label}: {text}\n", file=sys.stderr),
                stop=received,
                compiling=compiling,
            )
    finally:
        bar.close()


def _formatted(seen: dict[str, Any]) -> list[str]:
    """Return the metrics as texts."""
    return [form.format(seen[name]) for name, form in SHOWN.items() if seen.get(name) is not None]


def _head(label: str, steps: int) -> int:
    """Return the columns that the bar takes beside the numbers, with times below ten hours."""
    return len(f"{label} 100%|{' ' * 10}| {steps}/{steps} [0:00:00<0:00:00, ]") + 1


def _fitting(texts: list[str], columns: int) -> str:
    """Join the first texts, as many as fit."""
    count = len(texts)
    while count > 1 and len("  ".join(texts[:count])) > columns:
        count -= 1
    return "  ".join(texts[:count])


def _left(seen: dict[str, Any], steps: int) -> list[str]:
    """Return the time left, extrapolated from the time so far."""
    step, seconds = seen["step"], seen.get("seconds")
    if not step or not seconds or step >= steps:
        return []
    minutes, rest = divmod(round(seconds / step * (steps - step)), 60)
    return [f"{minutes}:{rest:02} left"]


class QuickstartProgress:
    """One bar for several trainings and evaluations; its unit is a second on a quiet laptop."""

    def __init__(self, seconds: float) -> None:
        """Begin; `seconds` is the expected total."""
        self.terminal = sys.stderr.isatty()
        form = "{percentage:3.0f}% |{bar}| {elapsed} so far, {remaining} left  {desc}"
        self._bar = tqdm(total=seconds, disable=not self.terminal, bar_format=form, dynamic_ncols=True)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.write(text) if self.terminal else print(text, flush=True)

    def training(self, config: Config, seconds: float) -> Callbacks:
        """Return callbacks for a training that advances the bar by `seconds` in all."""
        label, steps = config.method, config.steps
        seen: dict[str, Any] = {}
        self._bar.set_description_str(f"{label}: compiling")

        def compiling(text: str) -> None:
            if self.terminal:
                self._bar.set_description_str(f"{label}: {text}")
            else:
                print(f"{label} {text}", flush=True)

        def step(number: int) -> None:
            self._bar.update(seconds / steps)

        def metrics(values: dict[str, Any]) -> None:
            seen.update(values)
            text = f"{label} {seen['step']:>{len(str(steps))}}/{steps}  " + "  ".join(_formatted(seen))
            if self.terminal:
                self._bar.set_description_str(text)
            elif "probe" in values or "knn" in values:
                print(text, flush=True)

        return Callbacks(
            step,
            metrics,
            warning=lambda text: self.say(f"WARNING: {label}: {text}"),
            compiling=lambda what: compilation.timed(what, config, compiling),
        )

    def parts(self, label: str, seconds: dict[str, float]) -> Progress:
        """Return the progress of an evaluation whose parts advance the bar by `seconds` each."""
        return _Parts(self, label, seconds)

    def advance(self, seconds: float, text: str) -> None:
        """Advance the bar and describe what comes next."""
        self._bar.set_description_str(text)
        self._bar.update(seconds)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


class _Parts(Progress):
    def __init__(self, progress: QuickstartProgress, label: str, seconds: dict[str, float]) -> None:
        super().__init__()
        self._bar_of_all, self._label, self._seconds = progress, label, seconds

    def start(self, part: str) -> None:
        self._part, self._done = part, 0.0
        self._bar_of_all.advance(0.0, f"measuring {self._label}: {part}")

    def tick(self, total: int) -> None:
        self._move(self._seconds.get(self._part, 0.0) / total)

    def stop(self) -> None:
        self._move(self._seconds.get(self._part, 0.0) - self._done)

    def _move(self, seconds: float) -> None:
        self._done += seconds
        self._bar_of_all.advance(seconds, f"measuring {self._label}: {self._part}")

    def say(self, text: str) -> None:
        self._bar_of_all.say(text)
