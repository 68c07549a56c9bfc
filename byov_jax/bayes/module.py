"""`Bayesian(module)`: a Flax module with a Gaussian posterior over its parameters."""

from typing import Any

import flax.linen as nn

from byov_jax import ranges
from byov_jax.bayes import posterior
from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.select import Where


class Bayesian(nn.Module):
    """Wrap a Flax module so that every call samples its weights from a posterior.

    `params` holds `{"mean": ..., "log_var": ...}`, two trees like the wrapped module's parameters, so
    `Posterior(**variables["params"])` is the argument of `posterior.kl`, `posterior.snr` and so on; for a
    network with several Bayesian modules in it, `posterior.collect(variables["params"])`.
    A call samples from the rng stream `"weights"`; with `use_mean=True` it uses the mean and needs no stream.
    Other collections (batch statistics, ...) and rng streams (dropout, ...) pass through unchanged.

    >>> net = Bayesian(nn.Dense(10))
    >>> variables = net.init(key, x)
    >>> y = net.apply(variables, x, rngs={"weights": key})
    >>> z = net.apply(variables, "project", x, rngs={"weights": key}, method="call")  # another method

    Attributes:
      module: the network.
      where: which parameters are Bayesian, as in `posterior.init`.
      log_var: initial log-variance, in [-100, 0].
    """

    module: nn.Module
    where: Where = "all"
    log_var: float = -10.0

    def __post_init__(self) -> None:
        ranges.check(log_var=self.log_var)
        super().__post_init__()

    def setup(self):
        # Flax binds a module created in another's compact method to that one: wrap an unbound copy.
        self.network = self.module.copy(parent=None, name=None)
        nn.share_scope(self, self.network)

    def __call__(self, *args: Any, use_mean: bool = False, **kwargs: Any):
        """Call the module with drawn weights, or with their mean."""
        return self.call("__call__", *args, use_mean=use_mean, **kwargs)

    def call(self, method: str, *args: Any, use_mean: bool = False, **kwargs: Any):
        """Call a method of the module by name, with drawn weights or with their mean."""
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
            lambda module, *args, **kwargs: getattr(module, method)(*args, **kwargs),
            "params",
            trans_in_fn=weights_of,
            trans_out_fn=posterior_of,
            init=initializing,
        )
        return call(self.network, *args, **kwargs)
