"""Evaluate a run directory: results in evaluation.json, and in evaluation/PART.json and PART.npz."""

from pathlib import Path
from typing import Any

import numpy as np

from byov_jax import files
from byov_jax.data.dataset import Dataset, Unlabelled
from byov_jax.errors import RunError
from byov_jax.evaluation.suite.context import Options, Progress
from byov_jax.evaluation.suite.evaluator import Evaluator, InMemoryStorage
from byov_jax.evaluation.suite.results import Numbers, with_present_names
from byov_jax.model import Model, load, save_probe
from byov_jax.training import build, run_directory


def open_run(
    run: Path,
    *,
    data: str | None = None,
    supervised: Path | None = None,
    ood: str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Evaluator:
    """Return an evaluator of a run that keeps its results in the run directory.

    Args:
      run: the run directory.
      data: labelled images, as in `config.data.source`; those of the training if None.
      supervised: a supervised_bbb run, for the part "alignment".
      ood: images of another kind, for the part "ood".
      options: draws, seed and so on.
      progress: shows the progress.
    """
    model = load(run)
    reference = load(supervised) if supervised else None
    if reference is not None and not (reference.supervised and reference.bayesian):
        raise RunError(f"--supervised={supervised} is not a supervised_bbb run")
    return Evaluator(
        model,
        _load(data, model),
        supervised=reference,
        ood=_load(ood, model).test if ood else None,
        options=options,
        progress=progress or Progress(),
        storage=RunStorage(run),
        name=str(run),
        source=data or "",
    )


def write_result(run: Path, evaluator: Evaluator, baseline: Evaluator | None = None) -> None:
    """Write evaluation.json."""
    files.write_json(run / run_directory.EVALUATION, evaluator.result(baseline))


class RunStorage(InMemoryStorage):
    """Results in evaluation/PART.json and evaluation/PART.npz of a run directory."""

    def __init__(self, run: Path) -> None:
        """Use the directory of a run, which must exist."""
        self._run, self._folder = run, run / run_directory.ARRAYS

    def write(self, part: str, settings: Numbers, numbers: Numbers, arrays: dict[str, np.ndarray]) -> None:
        """Write the arrays, then the numbers: a part with numbers is complete."""
        self._folder.mkdir(exist_ok=True)
        files.write_npz(self._folder / f"{part}.npz", arrays)
        files.write_json(self._folder / f"{part}.json", {"settings": settings, "numbers": numbers})

    def read(self, part: str) -> dict[str, Any] | None:
        """Return `settings` and `numbers` of a complete part, None if it is missing or unreadable."""
        try:
            found = files.read_json(self._folder / f"{part}.json")
        except RunError:
            return None
        numbers = found.get("numbers")
        if "settings" not in found or not isinstance(numbers, dict):
            return None
        complete = (self._folder / f"{part}.npz").is_file()
        return found | {"numbers": with_present_names(numbers)} if complete else None

    def arrays(self, part: str) -> dict[str, np.ndarray]:
        """Read the arrays of a part."""
        return files.read_npz(self._folder / f"{part}.npz")

    def save_probe(self, model: Model) -> None:
        """Save the probe with the run."""
        save_probe(self._run, model)


def _load(source: str | None, model: Model) -> Dataset:
    try:
        data = build.dataset(model.config, source)
    except (ValueError, OSError) as error:
        raise RunError(str(error)) from None
    if isinstance(data, Unlabelled):
        raise RunError(
            f"evaluate needs labels, {source or model.config.data.source} has none: sort its images into "
            "train/CLASS/ and test/CLASS/"
        )
    return data
