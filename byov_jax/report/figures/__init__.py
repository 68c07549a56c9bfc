"""The figures of the report, in its order: each makes a figure of a study, or None without numbers."""

from collections.abc import Callable

from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Figure
from byov_jax.report.figures.alignment import alignment
from byov_jax.report.figures.convergence import convergence
from byov_jax.report.figures.examples import examples
from byov_jax.report.figures.latent import latent
from byov_jax.report.figures.layers import layers
from byov_jax.report.figures.pruning import pruning
from byov_jax.report.figures.reliability import reliability
from byov_jax.report.figures.shift import shift
from byov_jax.report.figures.training import training

FIGURES: tuple[Callable[[Comparison], Figure | None], ...] = (
    training,
    layers,
    reliability,
    shift,
    pruning,
    convergence,
    latent,
    alignment,
    examples,
)
