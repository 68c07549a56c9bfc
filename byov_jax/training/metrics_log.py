"""What a run writes down while it trains: metrics.jsonl, posterior.jsonl, TensorBoard events on request."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from byov_jax import files
from byov_jax.training import run_directory

FILES = (run_directory.METRICS, run_directory.POSTERIOR)
Warn = Callable[[str], None]


class MetricsLog:
    """The files of a run that grow line by line.

    A line for which there is no room waits for the next one: a full disk does not end a training.

    Attributes:
      last: the last line of each file when the journal was opened, None if there was none.
      failure: why lines are waiting, None if none is.
    """

    def __init__(
        self, run: Path, *, step: int, tensorboard: bool = False, warn: Warn = lambda text: None
    ) -> None:
        """Goes on after `step`: what was written beyond it belongs to work that was lost, and is dropped.

        The line of step 0 shows the untrained network: a run that begins goes on after -1. `warn` hears of
        lines that cannot be read, and are left out; the file as it was is kept beside the new one.
        """
        self.last = {name: _keep(run / name, step, warn) for name in FILES}
        self.failure: str | None = None
        self._waiting = dict.fromkeys(FILES, "")
        self._run = run
        self._events = _events(run, step) if tensorboard else None

    def metrics(self, line: dict[str, Any]) -> None:
        """One JSON object, with its `step`."""
        self._append(run_directory.METRICS, line)
        if self._events is not None:
            for name, value in line.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self._events.add_scalar(name, value, line["step"])
            self._events.flush()

    def posterior(self, line: dict[str, Any]) -> None:
        """One JSON object with `step` and the statistics of all `layers`."""
        self._append(run_directory.POSTERIOR, line)

    def flush(self) -> None:
        """Tries to write the lines that are waiting."""
        try:
            for name in FILES:
                if self._waiting[name]:
                    files.append(self._run / name, self._waiting[name].encode())
                    self._waiting[name] = ""
            self.failure = None
        except OSError as error:
            self.failure = f"{self._run / name} cannot be written ({error.strerror})"

    def close(self) -> None:
        """No more lines."""
        if self._events is not None:
            self._events.close()

    def _append(self, name: str, line: dict[str, Any]) -> None:
        self._waiting[name] += json.dumps(files.finite(line), allow_nan=False) + "\n"
        self.flush()


def _keep(file: Path, step: int, warn: Warn) -> dict[str, Any] | None:
    """Drops the lines after `step`; returns the last that stays."""
    if not file.is_file():
        return None
    lines, damaged = files.scan_jsonl(file)
    if damaged:
        warn(f"{file} line {min(damaged)} cannot be read and is left out; it stays in {_copy(file)}")
    kept = [line for line in lines if line["step"] <= step]
    files.write_text(file, "".join(json.dumps(line) + "\n" for line in kept))
    return kept[-1] if kept else None


def _copy(file: Path) -> Path:
    """A copy of a file that is damaged, under a name that is free."""
    names = (file.with_name(f"{file.name}.damaged{n or ''}") for n in itertools.count())
    return Path(shutil.copyfile(file, next(name for name in names if not name.exists())))


def _events(run: Path, step: int) -> Any:
    from tensorboardX import SummaryWriter  # imports protobuf, which most runs do without

    return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)  # hides what was lost
