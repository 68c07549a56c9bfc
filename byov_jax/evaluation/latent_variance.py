"""Latent variance: the variance of an image's features over draws of the weights."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.bayes.posterior import Posterior
from byov_jax.evaluation import predictive
from byov_jax.images import shifts

STRENGTHS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Standard deviations of the Gaussian noise that `against_noise` adds to images in [0, 1]."""


class LatentVariance(NamedTuple):
    """Variance over draws of the features at one layer, averaged over features, for every image.

    Attributes:
      variance: in the features' own units.
      relative: divided by the mean square of the features; comparable between layers and models.
    """

    variance: Float[Array, "*strengths n"]
    relative: Float[Array, "*strengths n"]


def latent_variance(
    key: Array, q: Posterior, apply: predictive.Apply, x: Any, draws: int = 50
) -> dict[str, LatentVariance]:
    """Latent variance of each output of `apply`, a NamedTuple of features [n, ...] like `networks.Taps`."""
    mean, variance = predictive.moments(key, q, apply, x, draws)
    return {name: _per_example(getattr(mean, name), getattr(variance, name)) for name in type(mean)._fields}


def against_noise(
    key: Array,
    q: Posterior,
    apply: predictive.Apply,
    images: Array | np.ndarray,
    draws: int = 50,
    strengths: Sequence[float] = STRENGTHS,
) -> dict[str, LatentVariance]:
    """Latent variance of images under Gaussian noise of increasing strength.

    The draws, and the noise pattern of an image up to its scale, are the same at every strength.

    Args:
      key: seeds noise and draws.
      q: the posterior.
      apply: `(params, images) -> outputs`, a NamedTuple of features, images being float32 in [0, 1].
      images: [n, height, width, channels].
      draws: number of draws.
      strengths: standard deviations of the noise.

    Returns:
      For each output, `LatentVariance` with arrays [strengths, n].
    """
    noise_key, draw_key = jax.random.split(key)
    noisy = [shifts.corrupt("gaussian_noise", strength, noise_key, images) for strength in strengths]
    # One batch with all strengths, so that each draw of the weights is made once.
    result = latent_variance(draw_key, q, apply, jnp.concatenate(noisy), draws)
    return jax.tree.map(lambda a: a.reshape(len(strengths), len(images)), result)


@jax.jit
def _per_example(mean, variance) -> LatentVariance:
    features = tuple(range(1, mean.ndim))
    averaged = jnp.mean(variance, axis=features)
    square = jnp.mean(jnp.square(mean), axis=features) + averaged
    return LatentVariance(averaged, averaged / jnp.maximum(square, jnp.finfo(square.dtype).tiny))
