"""Measure weight draws: convergence, latent variance, alignment with a supervised model."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from byov_jax.evaluation import alignment, bootstrap, convergence, latent_variance, predictive
from byov_jax.evaluation.suite.context import Context
from byov_jax.evaluation.suite.results import Result, plain

CONVERGENCE_DRAWS = 50
RESAMPLES = 1000


def measure_convergence(context: Context) -> Result:
    """Measure how many draws are enough."""
    if not context.model.bayesian:
        return Result({"draws enough": 1, "reason": "the model has no posterior: every draw is the same"}, {})
    images = context.sample_images(256).image
    q, apply = context.model.classifier()
    probs, *_ = predictive.predict(context.key("draws"), q, apply, images, CONVERGENCE_DRAWS)
    context.tick(2)
    curve = convergence.convergence(context.key("resamples"), probs)
    numbers = {
        "images": len(images),
        "repeats": len(curve.mean),
        "draws enough": {f"{tolerance}": curve.enough(tolerance) for tolerance in (0.02, 0.01, 0.005)},
        "mean_error": {str(k): curve.mean_error[k - 1] for k in (1, 10, 30, CONVERGENCE_DRAWS)},
        "std_error": {str(k): curve.std_error[k - 1] for k in (1, 10, 30, CONVERGENCE_DRAWS)},
    }
    context.tick(2)
    return Result(numbers, curve._asdict())


def measure_latent(context: Context) -> Result:
    """Measure latent variance at every tap against the strength of Gaussian noise."""
    if not context.model.bayesian:
        return Result({"reason": "the model has no posterior: its latent variance is 0"}, {})
    images = context.sample_images(64).image
    q, apply = context.model.taps()
    strengths = latent_variance.STRENGTHS
    found = latent_variance.against_noise(context.key("noise"), q, apply, images)
    context.tick(1)
    found = {tap: value for tap, value in found.items() if tap != "logits"}
    counts = bootstrap.counts(context.key("resamples"), len(images), RESAMPLES)
    numbers: dict[str, Any] = {"images": len(images), "draws": 50, "strengths": strengths}
    arrays: dict[str, Any] = {"strengths": np.asarray(strengths)}
    for tap, values in found.items():
        numbers[tap] = {}
        for name, value in values._asdict().items():
            replicates = (counts @ value.T) / len(images)
            numbers[tap][name] = plain(bootstrap.estimate(jnp.mean(value, axis=1), replicates))
            arrays[f"{tap}/{name}"] = value
    return Result(numbers, arrays)


def measure_alignment(context: Context) -> Result:
    """Measure the correlation of the predictive std with that of a supervised Bayesian model."""
    if context.reference is None:
        return Result({"reason": "no supervised run was given: --supervised=RUN"}, {})
    if not context.model.bayesian:
        return Result({"reason": "the model has no posterior: its predictive std is 0"}, {})
    images = context.sample_images(500)
    stds = []
    for model in (context.reference, context.model):
        q, apply = model.classifier()
        predicted = predictive.statistics(
            context.key("draws"), q, apply, images.image, context.options.std_draws
        )
        stds.append(predicted.std)
        context.tick(3)
    try:
        found = alignment.align(context.key("resamples"), stds[0], stds[1], RESAMPLES)
    except ValueError as error:  # a classifier whose draws all saturate has the same std everywhere
        return Result({"reason": f"the predictive stds have no correlation: {error}"}, {})
    context.tick(3)
    numbers = {
        "images": len(images.label),
        "draws": context.options.std_draws,
        "pearson": plain(found.pearson),
        "spearman": plain(found.spearman),
        "mean": found.mean,
        "covariance": found.covariance,
    }
    arrays = {name: value for name, value in found._asdict().items() if name not in ("pearson", "spearman")}
    return Result(numbers, arrays | {"label": images.label})
