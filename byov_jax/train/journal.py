"""What a run writes down while it trains: metrics.jsonl, posterior.jsonl, TensorBoard events on request."""

import json
import math
from pathlib import Path
from typing import Any

from byov_jax.train import directory


class Journal:
    """The files of a run that grow line by line."""

    def __init__(self, run: Path, *, step: int, tensorboard: bool = False) -> None:
        """Goes on after `step`: what was written beyond it belongs to work that was lost, and is dropped.

        The line of step 0 shows the untrained network: a run that begins goes on after -1.
        """
        self.last = {name: _keep(run / name, step) for name in (directory.METRICS, directory.POSTERIOR)}
        self._run = run
        self._events = _events(run, step) if tensorboard else None

    def metrics(self, line: dict[str, Any]) -> None:
        """One JSON object, with its `step`."""
        self._append(directory.METRICS, line)
        if self._events is not None:
            for name, value in line.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self._events.add_scalar(name, value, line["step"])
            self._events.flush()

    def posterior(self, line: dict[str, Any]) -> None:
        """One JSON object with `step` and the statistics of all `layers`."""
        self._append(directory.POSTERIOR, line)

    def close(self) -> None:
        """No more lines."""
        if self._events is not None:
            self._events.close()

    def _append(self, name: str, line: dict[str, Any]) -> None:
        with (self._run / name).open("a") as file:
            file.write(json.dumps(finite(line), allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of such a file; a torn last one, of a process that was killed, is left out."""
    lines = []
    for text in file.read_text().splitlines() if file.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            break
        lines.append(line)
    return lines


def _keep(file: Path, step: int) -> dict[str, Any] | None:
    """Drops the lines after `step`; returns the last that stays."""
    if not file.is_file():
        return None
    kept = [line for line in read(file) if line["step"] <= step]
    directory.write_text(file, "".join(json.dumps(line) + "\n" for line in kept))
    return kept[-1] if kept else None


def _events(run: Path, step: int) -> Any:
    from tensorboardX import SummaryWriter  # imports protobuf, which most runs do without

    return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)  # hides what was lost
