"""The online probe: a linear classifier trained beside the encoder, behind a stop-gradient.

It monitors the quality of the features during training without influencing them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

_optimizer = optax.adam(2e-3)


class OnlineProbe(NamedTuple):
    """Parameters of the probe on the encoder's features and their optimizer state; both empty if disabled."""

    params: dict[str, Array]
    optimizer: Any


def init(features: int, classes: int) -> OnlineProbe:
    """Return a probe that predicts the uniform distribution."""
    params = {"weight": jnp.zeros((features, classes)), "bias": jnp.zeros((classes,))}
    return OnlineProbe(params, _optimizer.init(params))


def none() -> OnlineProbe:
    """Return the empty state of a method without probe."""
    return OnlineProbe({}, ())


def logits(params: dict[str, Array], features: Float[Array, "n features"]) -> Float[Array, "n classes"]:
    """Classify features, each standardised over its coordinates, without gradient to the features."""
    x = jax.nn.standardize(jax.lax.stop_gradient(features), axis=-1)
    return x @ params["weight"] + params["bias"][None]


def loss(
    params: dict[str, Array],
    features: Float[Array, "n features"],
    labels: Int[Array | np.ndarray, "n"] | None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return mean cross-entropy and top-1 accuracy of the rows whose label is a class, or 0."""
    if labels is None:
        raise ValueError("the online probe needs labels: pass Batch(image, label), or classes=0 for no probe")
    scores = logits(params, features)
    labelled = (labels >= 0) & (labels < scores.shape[-1])
    hits = jnp.equal(jnp.argmax(scores, axis=-1), labels)
    terms = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.where(labelled, labels, 0))
    count = jnp.maximum(jnp.sum(labelled), 1)
    return jnp.sum(jnp.where(labelled, terms, 0.0)) / count, jnp.sum(hits & labelled) / count


def update(online: OnlineProbe, gradient: dict[str, Array]) -> OnlineProbe:
    """Apply one Adam step."""
    if not online.params:
        return online
    updates, state = _optimizer.update(gradient, online.optimizer, online.params)
    return OnlineProbe(optax.apply_updates(online.params, updates), state)
