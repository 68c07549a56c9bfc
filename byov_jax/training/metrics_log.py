"""Write metrics.jsonl, posterior.jsonl and, on request, TensorBoard events."""

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
    """Append lines to the files of a run.

    A line that cannot be written is kept and written with the next one: a full disk does not end a training.

    Attributes:
      last: the last line of each file when the log was opened, None if it had none.
      failure: why lines are pending, None if none is.
    """

    def __init__(
        self, run: Path, *, step: int, tensorboard: bool = False, warn: Warn = lambda text: None
    ) -> None:
        """Continue after `step`: later lines belong to work that was lost, and are dropped.

        The line of step 0 is that of the untrained network, so a new run continues after -1. Lines that
        cannot be read are dropped with a warning; a copy of the damaged file is kept.
        """
        self.last = {name: _truncate(run / name, step, warn) for name in FILES}
        self.failure: str | None = None
        self._pending = dict.fromkeys(FILES, "")
        self._run = run
        self._events = _events(run, step) if tensorboard else None

    def metrics(self, line: dict[str, Any]) -> None:
        """Write one line, an object with its `step`."""
        self._append(run_directory.METRICS, line)
        if self._events is not None:
            for name, value in line.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self._events.add_scalar(name, value, line["step"])
            self._events.flush()

    def posterior(self, line: dict[str, Any]) -> None:
        """Write one line, an object with `step` and the statistics of all `layers`."""
        self._append(run_directory.POSTERIOR, line)

    def flush(self) -> None:
        """Try to write the pending lines."""
        try:
            for name in FILES:
                if self._pending[name]:
                    files.append(self._run / name, self._pending[name].encode())
                    self._pending[name] = ""
            self.failure = None
        except OSError as error:
            self.failure = f"{self._run / name} cannot be written ({error.strerror})"

    def close(self) -> None:
        """Close the files."""
        if self._events is not None:
            self._events.close()

    def _append(self, name: str, line: dict[str, Any]) -> None:
        self._pending[name] += json.dumps(files.nan_to_none(line), allow_nan=False) + "\n"
        self.flush()


def _truncate(file: Path, step: int, warn: Warn) -> dict[str, Any] | None:
    """Drop the lines after `step`; return the last remaining one."""
    if not file.is_file():
        return None
    lines, damaged = files.scan_jsonl(file)
    if damaged:
        warn(f"{file} line {min(damaged)} cannot be read and is dropped; {_copy(file)} keeps it")
    kept = [line for line in lines if line["step"] <= step]
    files.write_text(file, "".join(json.dumps(line) + "\n" for line in kept))
    return kept[-1] if kept else None


def _copy(file: Path) -> Path:
    """Copy a damaged file to an unused name."""
    names = (file.with_name(f"{file.name}.damaged{n or ''}") for n in itertools.count())
    return Path(shutil.copyfile(file, next(name for name in names if not name.exists())))


def _events(run: Path, step: int) -> Any:
    from tensorboardX import SummaryWriter  # imports protobuf, which most runs do not need

    return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)  # hides what is repeated
