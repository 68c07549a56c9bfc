"""The parts of an evaluation: a function each, the options it depends on, and whether a baseline needs it."""

from collections.abc import Callable
from typing import NamedTuple

from byov_jax.evaluation.suite.calibration import measure_calibration
from byov_jax.evaluation.suite.context import Context
from byov_jax.evaluation.suite.draws import measure_alignment, measure_convergence, measure_latent
from byov_jax.evaluation.suite.probes import measure_probes
from byov_jax.evaluation.suite.results import Result
from byov_jax.evaluation.suite.shift import measure_ood, measure_shift
from byov_jax.evaluation.suite.weights import measure_layers, measure_pruning


class Part(NamedTuple):
    """A part of an evaluation.

    Attributes:
      measure: computes it.
      options: the options that it depends on.
      baseline: whether it is measured on the baseline as well.
    """

    measure: Callable[[Context], Result]
    options: tuple[str, ...] = ()
    baseline: bool = False


PARTS = {
    "probe": Part(measure_probes, ("draws", "blocks", "labels", "features")),
    "calibration": Part(measure_calibration, ("draws",), baseline=True),
    "convergence": Part(measure_convergence),
    "shift": Part(measure_shift, ("shift_draws", "shift_images"), baseline=True),
    "ood": Part(measure_ood, ("shift_draws", "shift_images")),
    "pruning": Part(measure_pruning, ("refit",), baseline=True),
    "latent": Part(measure_latent),
    "alignment": Part(measure_alignment, ("std_draws",)),
    "layers": Part(measure_layers),
}
