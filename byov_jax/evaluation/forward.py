"""What a network computes from images, as `(q, apply)` for `predictive`: features, class probabilities."""

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


def variables_of(q: Posterior, stats: dict, parts: tuple[str, ...]) -> Posterior:
    """`parts` of the parameters, with the other collections as point estimates beside them."""
    here = [part for part in parts if part in q.mean]
    others = {name: {p: tree[p] for p in parts if p in tree} for name, tree in stats.items()}
    return Posterior(
        {"params": {part: q.mean[part] for part in here}, **others},
        {"params": {part: q.log_var[part] for part in here}, **jax.tree.map(lambda _: None, others)},
    )


def with_point_estimates(q: Posterior, **more: Any) -> Posterior:
    """`q` with more variables, which are point estimates."""
    certain = jax.tree.map(lambda _: None, more)
    return Posterior(q.mean | more, q.log_var | certain)


# What `apply` computes depends on the architecture alone, and its identity is that of the compiled program:
# models of one architecture share it, trained or not, baseline or not.


@lru_cache(maxsize=64)
def at_tap(network: Any, views: Views, tap: str, blocks: int = 0) -> predictive.Apply:
    """The features at `tap`, or the pooled tokens of the last so many `blocks` of a ViT, side by side."""

    def last_blocks(module, x):
        found = jnp.moveaxis(module.encoder.block_features(x)[-blocks:], 0, 1)
        return found.reshape(len(found), -1)

    return _apply(network, views, last_blocks if blocks else _OUTPUTS[tap])


@lru_cache(maxsize=64)
def all_outputs(network: Any, views: Views) -> predictive.Apply:
    """All that the network computes, a `networks.Taps` or `.Logits`."""
    return _apply(network, views, lambda module, x: module(x))


@lru_cache(maxsize=64)
def classifier(network: Any, views: Views, *, own_head: bool) -> predictive.Apply:
    """Class probabilities, the encoder's features, and the probabilities of other probes on them."""
    encode = all_outputs(network, views) if own_head else at_tap(network, views, "encoder")

    def apply(variables_of, images):
        network_variables = {k: tree for k, tree in variables_of.items() if k not in ("probe", "others")}
        if own_head:
            found, logits = encode(network_variables, images)
            probs = jax.nn.softmax(logits)
        else:
            found = encode(network_variables, images)
            probs = linear_probe.probs(variables_of["probe"], found)
        others = {name: linear_probe.probs(other, found) for name, other in variables_of["others"].items()}
        return probs, found, others

    return apply


def _apply(network: Any, views: Views, output: Callable) -> predictive.Apply:
    def apply(variables_of, images):
        x = normalize(to_float(images), views.mean, views.std)
        return network.apply(variables_of, x, method=output)

    return apply
