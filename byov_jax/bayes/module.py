"""`Bayesian(module)`: any Flax network with a Gaussian posterior over its parameters, in one line."""

from typing import Any

import flax.linen as nn

from byov_jax.bayes import posterior
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.select import Where


class Bayesian(nn.Module):
    """Wraps a Flax module so that every call draws its weights from a posterior.

    `params` holds `{"mean": ..., "log_var": ...}`, twins of the wrapped module's own parameters, so
    `Posterior(**variables["params"])` goes straight into `posterior.kl`, `posterior.snr` and the rest.
    A call draws from the rng stream `"weights"`; with `use_mean=True` it uses the mean and needs no stream.
    Other collections (batch statistics, ...) and rng streams (dropout, ...) pass through untouched.

    >>> net = Bayesian(nn.Dense(10))
    >>> variables = net.init(key, x)
    >>> y = net.apply(variables, x, rngs={"weights": key})

    Attributes:
      module: the network.
      where: which of its parameters are Bayesian, as in `posterior.init`.
      log_var: their initial log-variance.
    """

    module: nn.Module
    where: Where = "all"
    log_var: float = -10.0

    def setup(self):
        # A copy of our own: a module made inside another's compact method belongs to that one.
        self.network = self.module.clone(parent=None, name=None)
        nn.share_scope(self, self.network)

    def __call__(self, *args: Any, use_mean: bool = False, **kwargs: Any):
        initializing = self.is_initializing()
        key = None
        if not (use_mean or initializing):
            if not self.has_rng("weights"):
                raise ValueError(
                    'drawing weights needs rngs={"weights": key}; for the mean pass use_mean=True'
                )
            key = self.make_rng("weights")

        def weights_of(variables):
            q = Posterior(**variables["params"])
            return {"params": q.mean if key is None else posterior.sample(key, q)}

        def posterior_of(variables):
            q = posterior.init(variables["params"], self.where, self.log_var)
            return {"params": q._asdict()}

        call = nn.map_variables(
            lambda module, *args, **kwargs: module(*args, **kwargs),
            "params",
            trans_in_fn=weights_of,
            trans_out_fn=posterior_of,
            init=initializing,
        )
        return call(self.network, *args, **kwargs)
