"""One progress display for several trainings and evaluations in a row."""

import sys
from typing import Any

from tqdm import tqdm

from byov_jax.cli.progress import SHOWN
from byov_jax.evaluation.suite.subject import Progress
from byov_jax.training.callbacks import Callbacks


class QuickstartProgress:
    """A bar whose units are seconds on a quiet laptop: a guess, so that the time left is a good one."""

    def __init__(self, seconds: float) -> None:
        """Begins; `seconds` is the sum of all that is going to be reported."""
        self.terminal = sys.stderr.isatty()
        form = "{percentage:3.0f}% |{bar}| {elapsed} so far, {remaining} left  {desc}"
        self._bar = tqdm(total=seconds, disable=not self.terminal, bar_format=form, dynamic_ncols=True)

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._bar.write(text) if self.terminal else print(text, flush=True)

    def training(self, label: str, steps: int, seconds: float) -> Callbacks:
        """Shows a training that advances the bar by `seconds`."""
        seen: dict[str, Any] = {}
        self._bar.set_description_str(f"{label}: compiling")

        def step(number: int) -> None:
            self._bar.update(seconds / steps)

        def line(values: dict[str, Any]) -> None:
            seen.update(values)
            shown = (form.format(seen[name]) for name, form in SHOWN.items() if seen.get(name) is not None)
            text = f"{label} {seen['step']:>{len(str(steps))}}/{steps}  " + "  ".join(shown)
            if self.terminal:
                self._bar.set_description_str(text)
            elif "probe" in values or "knn" in values:
                print(text, flush=True)

        return Callbacks(step, line, lambda text: self.say(f"WARNING: {label}: {text}"))

    def parts(self, label: str, seconds: dict[str, float]) -> Progress:
        """Shows an evaluation whose parts advance the bar by so many seconds each."""
        return _Parts(self, label, seconds)

    def advance(self, seconds: float, text: str) -> None:
        """Something that takes so long is done or under way."""
        self._bar.set_description_str(text)
        self._bar.update(seconds)

    def close(self) -> None:
        """The end."""
        self._bar.close()


class _Parts(Progress):
    def __init__(self, story: QuickstartProgress, label: str, seconds: dict[str, float]) -> None:
        self._story, self._label, self._seconds = story, label, seconds

    def start(self, part: str) -> None:
        self._part, self._done = part, 0.0
        self._story.advance(0.0, f"measuring {self._label}: {part}")

    def tick(self, total: int) -> None:
        self._move(self._seconds.get(self._part, 0.0) / total)

    def stop(self) -> None:
        self._move(self._seconds.get(self._part, 0.0) - self._done)

    def _move(self, seconds: float) -> None:
        self._done += seconds
        self._story.advance(seconds, f"measuring {self._label}: {self._part}")

    def say(self, text: str) -> None:
        self._story.say(text)
