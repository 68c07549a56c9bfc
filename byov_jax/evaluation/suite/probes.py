"""Measure frozen features: linear and nearest-neighbour classifiers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from byov_jax.data.dataset import Dataset, Pixels
from byov_jax.evaluation import knn, linear_probe
from byov_jax.evaluation.linear_probe import LinearProbe
from byov_jax.evaluation.suite.context import Context, linear_probes
from byov_jax.evaluation.suite.results import Result

NEIGHBOURS = (20, 200)
MAX_PIXELS = 2**14
"""Raw pixels of larger images get no linear classifier."""


def measure_probes(context: Context) -> Result:
    """Fit linear and nearest-neighbour classifiers on frozen features, with all labels and with few."""
    model, data = context.model, context.data
    predicted = context.predictions
    fractions, chosen = context.options.labels, context.options.features
    ticks = 6
    rows = {"student mean": _score(context.bank, predicted.mean.features, context.probes, data)}
    context.tick(ticks)
    if model.bayesian:
        # Draws go through the encoder, then to probes and a bank that were made with the mean weights.
        # Neighbours are looked up for the mean of an image's features over the draws.
        accuracy = {name: _accuracy(probs, data) for name, probs in predicted.mc.others[0].items()}
        rows["student MC"] = accuracy | _neighbours(context.bank, predicted.mc.features, data)
    context.tick(ticks)
    if not model.supervised and "teacher" in chosen:
        probes = linear_probes(context.teacher_bank, data, fractions, context.teacher.probe)
        queries = context.teacher.embed(data.test.image)
        rows["teacher"] = _score(context.teacher_bank, queries, probes, data)
    context.tick(ticks)
    others: dict[str, Callable[[Any], Any]] = {}
    if "untrained" in chosen:
        others["untrained"] = model.untrained().embed
    if "pixels" in chosen and math.prod(data.train.image.shape[1:]) <= MAX_PIXELS:
        others["raw pixels"] = _pixels
    if blocks := context.options.blocks:
        others[f"last {blocks} blocks"] = lambda image: model.embed(image, blocks=blocks)
    for name, features in others.items():
        bank = features(data.train.image)
        rows[name] = _score(bank, features(data.test.image), linear_probes(bank, data, fractions), data)
        context.tick(ticks)
    return Result({"accuracy": rows, "draws": context.options.draws if model.bayesian else 0}, {})


def _score(bank: Any, queries: Any, probes: dict[str, LinearProbe], data: Dataset) -> dict[str, float]:
    accuracy = {name: _accuracy(linear_probe.probs(fitted, queries), data) for name, fitted in probes.items()}
    return accuracy | _neighbours(bank, queries, data)


def _neighbours(bank: Any, queries: Any, data: Dataset) -> dict[str, float]:
    found = {}
    near = knn.nearest(bank, queries, k=min(max(NEIGHBOURS), len(data.train.label)))
    for k in (k for k in NEIGHBOURS if k <= len(data.train.label)):
        probs = knn.vote(near, data.train.label, classes=len(data.classes), k=k)
        found[f"kNN {k}"] = _accuracy(probs, data)
    return found


def _accuracy(probs: Any, data: Dataset) -> float:
    return float(np.mean(np.argmax(probs, axis=1) == data.test.label))


def _pixels(image: Pixels) -> np.ndarray:
    return np.asarray(image).reshape(len(image), -1).astype(np.float32) / 255.0
