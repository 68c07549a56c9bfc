"""The parts of `experiments.evaluate`: each takes a subject and returns numbers and arrays."""

from collections.abc import Callable

from experiments.measure.calibration import measure_calibration
from experiments.measure.draws import measure_alignment, measure_convergence, measure_latent
from experiments.measure.probes import measure_probes
from experiments.measure.shift import measure_ood, measure_shift
from experiments.measure.subject import Result, Subject
from experiments.measure.weights import measure_layers, measure_pruning

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
