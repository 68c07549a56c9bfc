"""The training methods BYOL, BYOV, supervised and supervised Bayes by Backprop, and their general form."""

from byov_jax.methods.layout import ONE_DEVICE as ONE_DEVICE
from byov_jax.methods.method import TRAITS as TRAITS
from byov_jax.methods.method import Method as Method
from byov_jax.methods.method import Traits as Traits
from byov_jax.methods.method import byol as byol
from byov_jax.methods.method import byov as byov
from byov_jax.methods.method import from_objective as from_objective
from byov_jax.methods.method import supervised as supervised
from byov_jax.methods.method import supervised_bbb as supervised_bbb
from byov_jax.methods.objectives import Inputs as Inputs
from byov_jax.methods.objectives import Outcome as Outcome
from byov_jax.methods.state import Bayes as Bayes

__all__ = [
    "ONE_DEVICE",
    "TRAITS",
    "Bayes",
    "Inputs",
    "Method",
    "Outcome",
    "Traits",
    "byol",
    "byov",
    "from_objective",
    "supervised",
    "supervised_bbb",
]
