"""Log metrics, evaluate on held-out images, save checkpoints and warn, each when it is due."""

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
from byov_jax.distributed import Placed, Runner, processes
from byov_jax.errors import TrainingError
from byov_jax.methods.state import Info
from byov_jax.training import build, loop, monitor, run_directory
from byov_jax.training.callbacks import Callbacks
from byov_jax.training.config import Config
from byov_jax.training.metrics_log import MetricsLog
from byov_jax.training.unreadable_images import UnreadableImages

PAUSES = (1.0, 4.0)
"""Seconds before each new attempt to save the last state."""

BAYESIAN = ("kl", "kl_per_weight", "kl_scaled", "beta", "temperature", "implied_l2")
"""Metrics that only methods with a posterior have."""


class Recorder:
    """What is written down during a training: metrics, posterior statistics, checkpoints."""

    def __init__(
        self,
        config: Config,
        runner: Runner,
        data: build.AnyDataset,
        workdir: Path,
        log: MetricsLog | None,
        callbacks: Callbacks,
        unreadable: UnreadableImages,
        step: int,
    ) -> None:
        """Begin after `step`; `log` is None in all processes but the main one."""
        self.config, self.runner, self.data = config, runner, data
        self.network, self.views = build.network(config), build.views(config)
        self.roles = build.roles(config, self.network)
        self.workdir, self.log, self.callbacks, self.unreadable = workdir, log, callbacks, unreadable
        self.epoch = config.data.size / config.batch_size
        self.monitor_every = config.monitor_every or max(round(self.epoch), 1)
        self.save_every = config.save_every or max(round(self.epoch), 1)
        last = (log and log.last[run_directory.METRICS]) or {}
        self.seconds = last.get("seconds") or 0.0
        self.writer = checkpointer.CheckpointWriter(
            workdir / run_directory.CHECKPOINTS,
            metadata={"config": config.to_dict(), "byov_jax": importlib.metadata.version("byov-jax")},
            retention=store.Retention(config.keep.last, config.keep.every),
        )
        self._warned: set[str] = set()
        self._last_save = step
        self._skipped = last.get("skipped", 0)
        self._consensus = processes.Consensus(runner.mesh, loop.MAX_STEPS_AHEAD)
        self._mark: tuple[int, float] | None = None

    def after_step(self, progress: loop.Progress) -> None:
        """Log, evaluate and save, each when it is due."""
        step, placed, info = progress
        last = step == self.config.steps
        evaluates = last or step % self.monitor_every == 0
        if self._mark is None:  # the first step compiles: the timer starts after it
            jax.block_until_ready(info)
            self._mark = (step, time.perf_counter())
        if evaluates or step % self.config.log_every == 0:
            line = self._line(step, info)
            self._warn(line)
            self._check_patience(line)
            if evaluates:
                self.evaluate(step, placed, line)
            else:
                self._write(line)
        retry = step % self.config.log_every == 0 and self._save_failed()
        # Twice per interval: a kill during a save leaves the one before, and so costs one interval at most.
        if last or retry or step % self.save_every in (0, self.save_every // 2):
            self.save(step, placed)

    def stop_requested(self, step: int) -> int:
        """Return the number with which any process asks to stop, the same in all of them; 0 to continue."""
        asked = self._consensus.max(int(self.callbacks.stop()))
        return asked if step < self.config.steps else 0

    def evaluate(self, step: int, placed: Placed, line: dict[str, Any]) -> None:
        """Add the accuracy on held-out images to a line and write it; write the posterior's statistics."""
        line = {"step": step, "epoch": step / self.epoch} | line
        with self._paused_timer(placed):
            state = self.runner.get_state(placed)
            count = self.config.monitor_images
            found = monitor.held_out(
                self.network, self.views, state, self.data, self.runner.mesh, images=count
            )
            self._write(line | found)
            if posterior.size(state.posterior):
                layers = jax.device_get(layer_statistics(state.posterior, roles=self.roles))
                plain = {
                    path: {name: float(value) for name, value in statistics._asdict().items()}
                    for path, statistics in layers.items()
                }
                if self.log is not None:
                    self.log.posterior({"step": step, "epoch": line["epoch"], "layers": plain})
            self.unreadable.check(self.data.train.image, self.data.test.image)

    def save(self, step: int, placed: Placed) -> None:
        """Begin to write the state in the background, unless that was done; failures are warnings."""
        if step == self._last_save:
            return
        if self.log is not None:
            self.log.flush()  # a run resumed from this state needs the lines before it
        with self._paused_timer(placed):
            self.writer.wait()
            self._warn_of_failure(self.writer.failure)
            self.writer.save(step, self.runner.get_state(placed))
            if self.save_every == 1:  # there is no step between two saves
                self.writer.wait()
        self._last_save = step

    def finish(self, step: int, placed: Placed) -> None:
        """Save the last state and wait until it is on disk; a TrainingError if it cannot be saved."""
        self.save(step, placed)
        for pause in PAUSES:
            self.writer.wait()
            if not (self._save_failed() or self._lines_pending()):
                return
            time.sleep(pause)
            if self._save_failed():
                self.writer.save(step, self.runner.get_state(placed))
        self.writer.wait()
        if self._save_failed():
            saved = self.writer.saved_step
            kept = "nothing was saved" if saved is None else f"step {saved} is safe"
            raise TrainingError(f"{self.workdir}: {self.writer.failure or 'another process failed'}; {kept}")
        if self._lines_pending():
            lost = "the metrics of the last steps could not be written"
            raise TrainingError(f"{self.workdir}: {lost}; step {step} is safe")

    def close(self) -> None:
        """Wait for the last save and close the files."""
        self.writer.close()
        if self.log is not None:
            self.log.close()
        self.unreadable.close()

    def _save_failed(self) -> bool:
        """Return whether the last save failed in any process; all processes must ask."""
        self._warn_of_failure(self.writer.failure)
        return processes.any_process(self.writer.failure is not None)

    def _lines_pending(self) -> bool:
        """Return whether lines still cannot be written in any process; all processes must ask."""
        if self.log is not None:
            self.log.flush()
        return processes.any_process(self.log is not None and self.log.failure is not None)

    def _warn_of_failure(self, failure: str | None) -> None:
        if failure is not None and failure not in self._warned:
            self._warned.add(failure)
            self.callbacks.warning(f"{failure}; training continues, and tries again")

    @contextmanager
    def _paused_timer(self, placed: Placed) -> Iterator[None]:
        """Exclude what happens inside from the training time."""
        jax.block_until_ready(placed)
        start = time.perf_counter()
        yield
        if self._mark is not None:
            step, clock = self._mark
            self._mark = (step, clock + time.perf_counter() - start)

    def _line(self, step: int, info: Info) -> dict[str, Any]:
        """Return the metrics of a step as a line of metrics.jsonl, with the time since the line before."""
        metrics = info.to_dict()
        if not self.config.traits.bayesian:
            for name in BAYESIAN:
                del metrics[name]
        if not self.config.traits.has_teacher:
            del metrics["tau"]
        assert self._mark is not None
        start, clock = self._mark
        now = time.perf_counter()
        self.seconds += now - clock
        self._mark = (step, now)
        rate = (step - start) * self.config.batch_size / (now - clock) if step > start else None
        return {
            "step": step,
            "epoch": step / self.epoch,
            **metrics,
            "images_per_second": rate,
            "seconds": self.seconds,
        }

    def _write(self, line: dict[str, Any]) -> None:
        if self.log is not None:
            line = {key: value for key, value in line.items() if not key.startswith("skipped_")}
            self.log.metrics(line)
            self._warn_of_failure(self.log.failure)
            self.callbacks.metrics(line)

    def _warn(self, line: dict[str, Any]) -> None:
        step, skipped = line["step"], line["skipped"]
        if skipped > self._skipped:
            self.callbacks.warning(
                f"step {step}: {skipped - self._skipped} of the last steps were skipped: "
                f"{monitor.skip_reason(line)}; {skipped} in all"
            )
            self._skipped = skipped
        found = monitor.diagnose(line)
        if found is not None and found.kind not in self._warned:
            self._warned.add(found.kind)
            self.callbacks.warning(f"step {step}: {found.text}")

    def _check_patience(self, line: dict[str, Any]) -> None:
        """End a run that skips all of its steps."""
        if line["skipped_in_a_row"] >= self.config.guard.patience:
            self.writer.wait()
            raise TrainingError(
                f"{self.workdir}: the last {line['skipped_in_a_row']} steps were skipped: "
                f"{monitor.skip_reason(line)}. Nothing was lost; try a lower learning rate, a longer "
                "warm-up, or config.optimizer.clip_norm=1, in a new --workdir"
            )
