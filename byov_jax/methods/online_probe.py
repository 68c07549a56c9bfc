"""The online probe: a linear classifier that learns beside the encoder, behind a stop-gradient.

It shows what the features are worth while they are learned, and costs next to nothing. It never changes what
is learned: no gradient of it reaches the encoder.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

_optimizer = optax.adam(2e-3)


class OnlineProbe(NamedTuple):
    """The probe on the encoder's features, and optax's state of it; both empty where there is no probe."""

    params: dict[str, Array]
    optimizer: Any


def init(features: int, classes: int) -> OnlineProbe:
    """A probe that gives every class the same probability."""
    params = {"weight": jnp.zeros((features, classes)), "bias": jnp.zeros((classes,))}
    return OnlineProbe(params, _optimizer.init(params))


def none() -> OnlineProbe:
    """No probe: there are no labels, or the method has a classifier of its own."""
    return OnlineProbe({}, ())


def logits(params: dict[str, Array], features: Float[Array, "n features"]) -> Float[Array, "n classes"]:
    """Of the features, each normalised to mean 0 and variance 1 over its coordinates, without gradient."""
    x = jax.nn.standardize(jax.lax.stop_gradient(features), axis=-1)
    return x @ params["weight"] + params["bias"][None]


def loss(
    params: dict[str, Array],
    features: Float[Array, "n features"],
    labels: Int[Array | np.ndarray, "n"] | None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Cross-entropy and top-1 accuracy on a batch."""
    if labels is None:
        raise ValueError("the online probe needs labels: pass Batch(image, label), or classes=0 for no probe")
    scores = logits(params, features)
    hits = jnp.equal(jnp.argmax(scores, axis=-1), labels)
    nll = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return jnp.mean(nll), jnp.mean(hits.astype(jnp.float32))


def update(online: OnlineProbe, gradient: dict[str, Array]) -> OnlineProbe:
    """One Adam step."""
    if not online.params:
        return online
    updates, state = _optimizer.update(gradient, online.optimizer, online.params)
    return OnlineProbe(optax.apply_updates(online.params, updates), state)
