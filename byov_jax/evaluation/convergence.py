"""How many weight draws are enough: predictive mean and std against the number of draws."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.evaluation import bootstrap, checks


class Convergence(NamedTuple):
    """Predictive mean and std of k draws, k = 1 .. K, in `repeats` resamples of K given draws.

    Both are of the probability of the class that the mean of all draws predicts; the std has ddof 0.

    Attributes:
      draws: k, 1 to K.
      mean: predictive mean, averaged over images, for every resample.
      std: predictive std, averaged over images, for every resample.
      mean_error: root mean square difference, over images and resamples, between the mean of k draws and the
        mean of all K draws.
      std_error: the same for the std.
    """

    draws: Float[Array, "K"]
    mean: Float[Array, "repeats K"]
    std: Float[Array, "repeats K"]
    mean_error: Float[Array, "K"]
    std_error: Float[Array, "K"]

    def enough(self, tolerance: float = 0.01) -> int | None:
        """Return the smallest k from which on `mean_error` is at most `tolerance`; None if K is too few."""
        if not tolerance > 0:
            raise ValueError(f"tolerance={tolerance!r} must be positive: it is a difference of probabilities")
        above = np.flatnonzero(np.asarray(self.mean_error) > tolerance)
        k = int(above[-1]) + 2 if len(above) else 1
        return k if k <= len(self.draws) else None


def convergence(key: Array, draws: Array | np.ndarray, repeats: int = 50) -> Convergence:
    """Compute the convergence curve of Monte-Carlo predictions.

    Args:
      key: seeds the resampling.
      draws: probabilities [K, n, classes], from `predictive.predict`.
      repeats: resamples; each takes K draws with replacement, of which the first k are used.
    """
    checks.probabilities(draws, ("draws", "n", "classes"))
    draws = checks.as_float(draws)
    predicted = jnp.argmax(jnp.mean(draws, axis=0), axis=-1)
    return _convergence(key, jnp.take_along_axis(draws, predicted[None, :, None], axis=-1)[..., 0], repeats)


@partial(jax.jit, static_argnames="repeats")
def _convergence(key, probability: Float[Array, "K n"], repeats: int) -> Convergence:
    count = probability.shape[0]
    k = jnp.arange(1, count + 1).astype(probability.dtype)[:, None]
    final_mean, final_std = jnp.mean(probability, axis=0), jnp.std(probability, axis=0)
    centred = probability - final_mean[None]  # differences keep the digits that squares would lose

    def resample(order):
        picked = centred[order]
        mean = jnp.cumsum(picked, axis=0) / k
        square = jnp.cumsum(jnp.square(picked), axis=0) / k
        std = jnp.sqrt(jnp.maximum(square - jnp.square(mean), 0.0))
        return (
            jnp.mean(mean + final_mean[None], axis=1),
            jnp.mean(std, axis=1),
            jnp.mean(jnp.square(mean), axis=1),
            jnp.mean(jnp.square(std - final_std[None]), axis=1),
        )

    mean, std, *errors = jax.lax.map(resample, bootstrap.indices(key, count, repeats))
    return Convergence(k[:, 0], mean, std, *(jnp.sqrt(jnp.mean(error, axis=0)) for error in errors))
