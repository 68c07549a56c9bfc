"""Bootstrap Your Own Variance in JAX: self-supervised learning that knows how sure it is."""

from byov_jax import images as images
from byov_jax import methods as methods
from byov_jax import networks as networks
from byov_jax.bayes import posterior as posterior
from byov_jax.bayes import priors as priors
from byov_jax.bayes import variance as variance
from byov_jax.bayes.module import Bayesian as Bayesian
from byov_jax.bayes.posterior import Posterior as Posterior
from byov_jax.bayes.statistics import layer_statistics as layer_statistics
from byov_jax.bayes.statistics import selected as selected
from byov_jax.evaluation import metrics as metrics
from byov_jax.evaluation import predictive as predictive
from byov_jax.evaluation import pruning as pruning
from byov_jax.evaluation.predictive import Prediction as Prediction
from byov_jax.evaluation.suite import evaluate as evaluate
from byov_jax.images import shifts as shifts
from byov_jax.methods import optimizers as optimizers
from byov_jax.methods import schedules as schedules
from byov_jax.methods.objectives import Batch as Batch
from byov_jax.methods.state import Info as Info
from byov_jax.methods.state import State as State
from byov_jax.model import Model as Model
from byov_jax.model import load as load

__all__ = [
    "Batch",
    "Bayesian",
    "Info",
    "Model",
    "Posterior",
    "Prediction",
    "State",
    "evaluate",
    "images",
    "layer_statistics",
    "load",
    "methods",
    "metrics",
    "networks",
    "optimizers",
    "posterior",
    "predictive",
    "priors",
    "pruning",
    "schedules",
    "selected",
    "shifts",
    "variance",
]

__version__ = "0.2.0"
