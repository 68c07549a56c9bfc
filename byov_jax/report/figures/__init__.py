"""The figures of the report in order; each returns a figure of the runs, or None without numbers."""

from collections.abc import Callable

from byov_jax.report.comparison import Comparison
from byov_jax.report.figures.alignment import alignment
from byov_jax.report.figures.convergence import convergence
from byov_jax.report.figures.examples import examples
from byov_jax.report.figures.latent import latent
from byov_jax.report.figures.layers import layers
from byov_jax.report.figures.pruning import pruning
from byov_jax.report.figures.reliability import reliability
from byov_jax.report.figures.shift import shift
from byov_jax.report.figures.training import training
from byov_jax.report.plotting import Figure

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
