"""A classifier under distribution shift: calibration, and whether it notices."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.bayes import posterior
from byov_jax.bayes.posterior import Posterior
from byov_jax.evaluation import comparison, metrics, predictive
from byov_jax.evaluation.comparison import Measured
from byov_jax.images import shifts

SCORES = ("entropy", "mutual_information", "latent_variance")
"""What may tell a shifted image from a clean one."""


class Detection(NamedTuple):
    """How well a score tells unfamiliar images (positive) from familiar ones."""

    auroc: Float[Array, ""]
    aupr: Float[Array, ""]
    fpr95: Float[Array, ""]


class Predictions(NamedTuple):
    """Both modes of prediction on the same images.

    Attributes:
      mean: with the posterior's mean.
      mc: averaged over draws; the same as `mean` for a deterministic model.
    """

    mean: predictive.Prediction
    mc: predictive.Prediction


def predictions(key: Array, q: Posterior, apply: predictive.Apply, images: Any, draws: int) -> Predictions:
    """Predictions with the mean and with `draws` draws; `apply` gives probabilities and features.

    `images` is an array, or what gives an array when a slice of it is asked for.
    """
    mean = predictive.statistics(key, posterior.point(q.mean), apply, images, draws=1)
    if not posterior.size(q):
        return Predictions(mean, mean)
    return Predictions(mean, predictive.statistics(key, q, apply, images, draws=draws))


def under(
    name: str,
    key: Array,
    q: Posterior,
    apply: predictive.Apply,
    images: Array | np.ndarray,
    draws: int,
    severities: tuple[int, ...] = (1, 2, 3, 4, 5),
) -> Predictions:
    """Predictions for the images under a shift, with a leading axis of severities on every array.

    All severities go through the network together, so that each draw of the weights is made once.
    """
    shift_key, draw_key = jax.random.split(key)
    shifted = [shifts.apply(name, severity, shift_key, images) for severity in severities]
    found = predictions(draw_key, q, apply, jnp.concatenate(shifted), draws)
    return jax.tree.map(lambda a: a.reshape(len(severities), len(images), *a.shape[1:]), found)


def measure(found: Predictions, labels: Array | np.ndarray, counts: Array) -> dict[str, Measured]:
    """Calibration of both modes, `{"mean": ..., "mc": ...}`, with the resamples `counts`."""
    return {
        mode: comparison.measure(prediction.probs, labels, counts)
        for mode, prediction in found._asdict().items()
    }


def detect(inside: predictive.Prediction, outside: predictive.Prediction) -> dict[str, Detection]:
    """For each of `SCORES`, how well it tells the images of `outside` from those of `inside`.

    Mutual information and latent variance are 0 throughout for a deterministic model: AUROC 1/2.
    """
    scores = [score for score in SCORES if getattr(inside, score) is not None]
    known, unknown = (
        [metrics.checks.scores(score, getattr(side, score)) for score in scores] for side in (inside, outside)
    )
    return dict(zip(scores, jax.device_get(_detect(known, unknown)), strict=True))


@jax.jit
def _detect(known: list, unknown: list) -> list[Detection]:
    areas = (metrics.auroc, metrics.aupr, metrics.fpr95)
    return [Detection(*(area(*pair) for area in areas)) for pair in zip(known, unknown, strict=True)]
