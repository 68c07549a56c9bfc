"""The parts of `byov_jax.cli.evaluate`: each takes a subject and returns numbers and arrays."""

from collections.abc import Callable

from byov_jax.evaluation.suite.calibration import measure_calibration
from byov_jax.evaluation.suite.draws import measure_alignment, measure_convergence, measure_latent
from byov_jax.evaluation.suite.probes import measure_probes
from byov_jax.evaluation.suite.shift import measure_ood, measure_shift
from byov_jax.evaluation.suite.subject import Result, Subject
from byov_jax.evaluation.suite.weights import measure_layers, measure_pruning

PARTS: dict[str, Callable[[Subject], Result]] = {
    "probe": measure_probes,
    "calibration": measure_calibration,
    "convergence": measure_convergence,
    "shift": measure_shift,
    "ood": measure_ood,
    "pruning": measure_pruning,
    "latent": measure_latent,
    "alignment": measure_alignment,
    "layers": measure_layers,
}
