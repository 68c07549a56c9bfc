"""`(q, apply)` pairs for `predictive`: the features, outputs or class probabilities of a network on images.

What `apply` computes depends on the architecture alone. The functions are cached, so that models of one
architecture share a compiled program, trained or not, baseline or not.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from byov_jax.bayes.posterior import Posterior
from byov_jax.evaluation import linear_probe, predictive
from byov_jax.images import normalize, to_float
from byov_jax.images.views import Views

TAPS = ("encoder", "projector", "predictor")
_OUTPUTS: dict[str, Callable] = {
    "encoder": lambda module, x: module.encoder(x),
    "projector": lambda module, x: module.project(x)[1],
    "predictor": lambda module, x: module(x).predictor,
}


def select_variables(q: Posterior, stats: dict, parts: tuple[str, ...]) -> Posterior:
    """Return Flax variables with the submodules `parts` of `q`, and of `stats` as point estimates."""
    present = [part for part in parts if part in q.mean]
    others = {name: {p: tree[p] for p in parts if p in tree} for name, tree in stats.items()}
    return Posterior(
        {"params": {part: q.mean[part] for part in present}, **others},
        {"params": {part: q.log_var[part] for part in present}, **jax.tree.map(lambda _: None, others)},
    )


def add_point_estimates(q: Posterior, **variables: Any) -> Posterior:
    """Return `q` with further variables as point estimates."""
    return Posterior(q.mean | variables, q.log_var | jax.tree.map(lambda _: None, variables))


@lru_cache(maxsize=64)
def features(network: Any, views: Views, tap: str, blocks: int = 0) -> predictive.Apply:
    """Compute the features at `tap`, or the concatenated pooled tokens of the last `blocks` of a ViT."""

    def last_blocks(module, x):
        tokens = jnp.moveaxis(module.encoder.block_features(x)[-blocks:], 0, 1)
        return tokens.reshape(len(tokens), -1)

    return _apply(network, views, last_blocks if blocks else _OUTPUTS[tap])


@lru_cache(maxsize=64)
def outputs(network: Any, views: Views) -> predictive.Apply:
    """Compute all outputs of the network, a `networks.Taps` or `.Logits`."""
    return _apply(network, views, lambda module, x: module(x))


@lru_cache(maxsize=64)
def classifier(network: Any, views: Views, *, own_head: bool) -> predictive.Apply:
    """Compute class probabilities, the encoder's features, and the probabilities of other probes on them."""
    encode = outputs(network, views) if own_head else features(network, views, "encoder")

    def apply(variables, images):
        network_variables = {k: tree for k, tree in variables.items() if k not in ("probe", "others")}
        if own_head:
            encoded, logits = encode(network_variables, images)
            probs = jax.nn.softmax(logits)
        else:
            encoded = encode(network_variables, images)
            probs = linear_probe.probs(variables["probe"], encoded)
        others = {name: linear_probe.probs(probe, encoded) for name, probe in variables["others"].items()}
        return probs, encoded, others

    return apply


def _apply(network: Any, views: Views, output: Callable) -> predictive.Apply:
    def apply(variables, images):
        x = normalize(to_float(images), views.mean, views.std)
        return network.apply(variables, x, method=output)

    return apply
