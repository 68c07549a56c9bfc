"""Measure the weights: accuracy under pruning, sigma and signal-to-noise ratio by layer."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from byov_jax.bayes.statistics import layer_statistics
from byov_jax.data.dataset import Images
from byov_jax.evaluation import pruning
from byov_jax.evaluation.suite.context import Context
from byov_jax.evaluation.suite.results import Result, plain
from byov_jax.model import Model


def measure_pruning(context: Context) -> Result:
    """Measure accuracy against the fraction of weights kept, without retraining the encoder."""
    model, data = context.model, context.data
    q, roles, test = model.posterior, model.roles, context.sample_images(1000)

    def evaluate(params: Any) -> dict[str, float]:
        pruned = dataclasses.replace(model, posterior=q._replace(mean=params))
        found = {"accuracy": _accuracy(pruned, test)}
        if context.options.refit and not model.supervised:
            refitted = pruned.with_probe(data.train.image, data.train.label, classes=len(data.classes))
            found["accuracy with a refitted probe"] = _accuracy(refitted, test)
        context.tick(len(criteria) * len(pruning.FRACTIONS))
        return found

    random_key = context.key("pruning")
    criteria: dict[str, Callable[[float], Any]] = {
        "magnitude": lambda keep: pruning.magnitude_mask(q.mean, keep, roles=roles),
        "random": lambda keep: pruning.random_mask(random_key, q.mean, keep, roles=roles),
    }
    if model.bayesian:
        criteria["snr"] = lambda keep: pruning.snr_mask(q, keep, roles=roles)
    rows = pruning.sweep(evaluate, q.mean, criteria)
    numbers: dict[str, Any] = {"images": len(test.label)} | {name: [] for name in criteria}
    for row in rows:
        numbers[row.criterion].append({"keep": row.keep, "sparsity": 1.0 - row.kept_fraction} | row.result)
    return Result(numbers, {})


def _accuracy(model: Model, images: Images) -> float:
    return float(np.mean(np.argmax(model.predict(images.image, draws=0).probs, axis=1) == images.label))


def measure_layers(context: Context) -> Result:
    """Return the mean and maximum of sigma and of the signal-to-noise ratio of every layer."""
    if not context.model.bayesian:
        return Result({"reason": "the model has no posterior"}, {})
    layers = layer_statistics(context.model.posterior, roles=context.model.roles)
    context.tick(1)
    return Result({path: plain(statistics) for path, statistics in layers.items()}, {})
