"""What happens beside the steps of a training: lines, looks at held-out images, checkpoints, warnings."""

import importlib.metadata
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from byov_jax.bayes import posterior
from byov_jax.bayes.statistics import layer_statistics
from byov_jax.checkpoints import checkpointer, store
from byov_jax.data.dataset import Dataset, Unlabelled
from byov_jax.distributed import processes
from byov_jax.distributed.runner import Placed, Runner
from byov_jax.errors import TrainingError
from byov_jax.methods.step import Info
from byov_jax.training import build, loop, monitor, run_directory
from byov_jax.training.callbacks import Callbacks
from byov_jax.training.metrics_log import MetricsLog
from byov_jax.training.unreadable_images import UnreadableImages

AnyDataset = Dataset | Unlabelled
PAUSES = (1.0, 4.0)
"""Seconds before the last state is tried to be saved again."""


class Session:
    """Logs, looks, saves and warns, each when it is due."""

    def __init__(
        self,
        config: dict[str, Any],
        runner: Runner,
        data: AnyDataset,
        workdir: Path,
        journal: MetricsLog | None,
        listener: Callbacks,
        bad: UnreadableImages,
        step: int,
    ) -> None:
        self.config, self.runner, self.data = config, runner, data
        self.network = build.network(config)
        self.workdir, self.journal, self.listener, self.bad = workdir, journal, listener, bad
        self.epoch = config["data"]["size"] / config["batch_size"]
        self.monitor_every = config["monitor_every"] or max(round(self.epoch), 1)
        self.save_every = config["save_every"] or max(round(self.epoch), 1)
        last = journal and journal.last[run_directory.METRICS]
        self.seconds = (last or {}).get("seconds") or 0.0
        self.warned: set[str] = set()
        self.writer = checkpointer.CheckpointWriter(
            workdir / run_directory.CHECKPOINTS,
            about={"config": config, "byov_jax": importlib.metadata.version("byov-jax")},
            kept=store.Retention(**config["keep"]),
        )
        self._begun = step
        self._skipped = (last or {}).get("skipped", 0)
        self._agreement = processes.Consensus(runner.mesh, loop.MAX_STEPS_AHEAD)
        self._mark: tuple[int, float] | None = None

    def after(self, progress: loop.Progress) -> None:
        """Logs, monitors and saves after a step, each when it is due."""
        step, placed, info = progress
        last = step == self.config["steps"]
        looks = last or step % self.monitor_every == 0
        if self._mark is None:  # the first step compiles: the clock starts after it
            jax.block_until_ready(info)
            self._mark = (step, time.perf_counter())
        if looks or step % self.config["log_every"] == 0:
            line = self._line(step, info)
            self._warn(line)
            self._give_up(line)
            if looks:
                self.look(step, placed, line)
            else:
                self._write(line)
        retry = step % self.config["log_every"] == 0 and self._unsaved()
        # Twice in an interval: a kill while one state is being written leaves the one before, and costs no
        # more than the interval.
        if last or retry or step % self.save_every in (0, self.save_every // 2):
            self.save(step, placed)

    def stops(self, step: int) -> int:
        """What ends the run early, after this step, the same in all processes; 0 if nothing does."""
        asked = self._agreement.greatest(int(self.listener.stop()))
        return asked if step < self.config["steps"] else 0

    def look(self, step: int, placed: Placed, line: dict[str, Any]) -> None:
        """Adds what held-out images show to a line and writes it; writes down the posterior."""
        line = {"step": step, "epoch": step / self.epoch} | line
        with self._aside(placed):
            state = self.runner.state(placed)
            shown = monitor.held_out(
                self.network,
                build.views(self.config),
                state,
                self.data,
                self.runner.mesh,
                images=self.config["monitor_images"],
            )
            self._write(line | shown)
            if posterior.size(state.posterior):
                layers = jax.device_get(layer_statistics(state.posterior))
                plain = {
                    path: {name: float(value) for name, value in statistics._asdict().items()}
                    for path, statistics in layers.items()
                }
                if self.journal is not None:
                    self.journal.posterior({"step": step, "epoch": line["epoch"], "layers": plain})
            self.bad.look(self.data.train.image, self.data.test.image)

    def save(self, step: int, placed: Placed) -> None:
        """Begins to write the state, once; the training goes on meanwhile, and whatever comes of it."""
        if step == self._begun:
            return
        if self.journal is not None:
            self.journal.flush()  # whoever goes on from this state has the lines before it
        with self._aside(placed):
            self.writer.wait()
            self._complain(self.writer.failure)
            self.writer.save(step, self.runner.state(placed))
            if self.save_every == 1:  # one step has no middle
                self.writer.wait()
        self._begun = step

    def settle(self, step: int, placed: Placed) -> None:
        """Saves the last state and waits until it is safe; a RunFailed if it cannot be."""
        self.save(step, placed)
        for pause in PAUSES:
            self.writer.wait()
            if not (self._unsaved() or self._unwritten()):
                return
            time.sleep(pause)
            if self._unsaved():
                self.writer.save(step, self.runner.state(placed))
        self.writer.wait()
        if self._unsaved():
            kept = "nothing was saved" if self.writer.saved is None else f"step {self.writer.saved} is safe"
            raise TrainingError(f"{self.workdir}: {self.writer.failure or 'another process failed'}; {kept}")
        if self._unwritten():
            raise TrainingError(f"{self.workdir}: the lines of the last steps are lost; step {step} is safe")

    def close(self) -> None:
        """No more lines, no more states."""
        self.writer.close()
        if self.journal is not None:
            self.journal.close()
        self.bad.close()

    def _unsaved(self) -> bool:
        """Whether the last save failed, in any process; all of them must ask."""
        self._complain(self.writer.failure)
        return processes.any_process(self.writer.failure is not None)

    def _unwritten(self) -> bool:
        """Whether lines are waiting for room, even now; all processes must ask."""
        if self.journal is not None:
            self.journal.flush()
        return processes.any_process(self.journal is not None and self.journal.failure is not None)

    def _complain(self, failure: str | None) -> None:
        if failure is not None and failure not in self.warned:
            self.warned.add(failure)
            self.listener.warning(f"{failure}; training goes on, and tries again")

    @contextmanager
    def _aside(self, placed: Placed) -> Iterator[None]:
        """The clock of the training stands still meanwhile."""
        jax.block_until_ready(placed)
        start = time.perf_counter()
        yield
        if self._mark is not None:
            step, clock = self._mark
            self._mark = (step, clock + time.perf_counter() - start)

    def _line(self, step: int, info: Info) -> dict[str, Any]:
        shown = {name: float(value) for name, value in info._asdict().items() if value is not None}
        for name in ("skipped", "skipped_in_a_row", "skipped_for"):
            shown[name] = int(shown[name])
        if self.config["method"] not in ("byov", "supervised_bbb"):
            for name in ("kl", "kl_per_weight", "kl_scaled", "beta", "temperature"):
                del shown[name]
        if self.config["method"].startswith("supervised"):
            del shown["tau"]
        assert self._mark is not None
        start, clock = self._mark
        now = time.perf_counter()
        self.seconds += now - clock
        self._mark = (step, now)
        rate = (step - start) * self.config["batch_size"] / (now - clock) if step > start else None
        return {
            "step": step,
            "epoch": step / self.epoch,
            **shown,
            "images_per_second": rate,
            "seconds": self.seconds,
        }

    def _write(self, line: dict[str, Any]) -> None:
        if self.journal is not None:
            line = {key: value for key, value in line.items() if not key.startswith("skipped_")}
            self.journal.metrics(line)
            self._complain(self.journal.failure)
            self.listener.line(line)

    def _warn(self, line: dict[str, Any]) -> None:
        step, skipped = line["step"], line["skipped"]
        if skipped > self._skipped:
            self.listener.warning(
                f"step {step}: {skipped - self._skipped} of the last steps were skipped: "
                f"{monitor.skip_reason(line)}; {skipped} in all"
            )
            self._skipped = skipped
        found = monitor.diagnose(line)
        if found is not None and found.kind not in self.warned:
            self.warned.add(found.kind)
            self.listener.warning(f"step {step}: {found.text}")

    def _give_up(self, line: dict[str, Any]) -> None:
        """Ends a run in which nothing is learned any more."""
        if line["skipped_in_a_row"] >= self.config["guard"]["patience"]:
            self.writer.wait()
            raise TrainingError(
                f"{self.workdir}: the last {line['skipped_in_a_row']} steps were skipped: "
                f"{monitor.skip_reason(line)}. Nothing was lost; try a lower learning rate, a longer "
                "warm-up, or config.optimizer.clip_norm=1, in a new --workdir"
            )
