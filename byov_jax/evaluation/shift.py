"""A classifier under distribution shift: calibration, and detection of shifted images by its uncertainty."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from byov_jax.bayes import posterior
from byov_jax.bayes.posterior import Posterior
from byov_jax.evaluation import bootstrap, checks, metrics, predictive
from byov_jax.evaluation.bootstrap import BootstrappedReport
from byov_jax.images import shifts

SCORES = ("entropy", "mutual_information", "latent_variance")
"""The uncertainty scores that are compared as detectors of shifted images."""


class Detection(NamedTuple):
    """How well a score separates shifted images (positive) from in-distribution ones."""

    auroc: Float[Array, ""]
    aupr: Float[Array, ""]
    fpr95: Float[Array, ""]


class Predictions(NamedTuple):
    """Predictions on the same images in both modes.

    Attributes:
      mean: with the posterior's mean.
      mc: averaged over draws; the same as `mean` for a deterministic model.
    """

    mean: predictive.Prediction
    mc: predictive.Prediction


def predict(key: Array, q: Posterior, apply: predictive.Apply, images: Any, draws: int) -> Predictions:
    """Predict with the mean and with `draws` draws; `apply` returns probabilities and features.

    `images` is an array, or an object whose slices are arrays.
    """
    mean = predictive.statistics(key, posterior.point(q.mean), apply, images, draws=1)
    if not posterior.size(q):
        return Predictions(mean, mean)
    return Predictions(mean, predictive.statistics(key, q, apply, images, draws=draws))


def predict_shifted(
    name: str,
    key: Array,
    q: Posterior,
    apply: predictive.Apply,
    images: Array | np.ndarray,
    draws: int,
    severities: tuple[int, ...] = (1, 2, 3, 4, 5),
) -> Predictions:
    """Predict for images under the shift `name`; every array has a leading axis of severities."""
    shift_key, draw_key = jax.random.split(key)
    shifted = [shifts.apply(name, severity, shift_key, images) for severity in severities]
    # One batch with all severities, so that each draw of the weights is made once.
    predictions = predict(draw_key, q, apply, jnp.concatenate(shifted), draws)
    return jax.tree.map(lambda a: a.reshape(len(severities), len(images), *a.shape[1:]), predictions)


def calibration(
    predictions: Predictions, labels: Array | np.ndarray, counts: Array
) -> dict[str, BootstrappedReport]:
    """Compute the metrics of both modes, `{"mean": ..., "mc": ...}`, with the resamples `counts`."""
    return {
        mode: bootstrap.calibration(prediction.probs, labels, counts)
        for mode, prediction in predictions._asdict().items()
    }


def detect(inside: predictive.Prediction, outside: predictive.Prediction) -> dict[str, Detection]:
    """Measure for each of `SCORES` how well it separates the images of `outside` from those of `inside`.

    Mutual information and latent variance are 0 for every image of a deterministic model: AUROC 1/2.
    """
    names = [name for name in SCORES if getattr(inside, name) is not None]
    known, unknown = ([getattr(prediction, name) for name in names] for prediction in (inside, outside))
    for name, *scores in zip(names, known, unknown, strict=True):
        for values in scores:
            checks.scores(name, values)
    return dict(zip(names, jax.device_get(_detect(known, unknown)), strict=True))


@jax.jit
def _detect(known: list, unknown: list) -> list[Detection]:
    areas = (metrics.auroc, metrics.aupr, metrics.fpr95)
    return [Detection(*(area(*pair) for area in areas)) for pair in zip(known, unknown, strict=True)]
