"""Measure calibration and detection under distribution shift and on out-of-distribution images."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from byov_jax.evaluation import bootstrap, shift
from byov_jax.evaluation.suite.context import Context
from byov_jax.evaluation.suite.results import Result, metrics, plain
from byov_jax.images import shifts

RESAMPLES = 200


def measure_shift(context: Context) -> Result:
    """Measure calibration under twelve shifts in five severities, and how well uncertainty detects them."""
    images = context.sample_images(context.options.shift_images)
    q, apply = context.model.classifier()
    counts = bootstrap.counts(context.key("resamples"), len(images.label), RESAMPLES)
    ticks = len(shifts.NAMES) + 1

    def predictions(name: str, severities: tuple[int, ...]) -> Iterator[shift.Predictions]:
        index = shifts.NAMES.index(name)
        key = jax.random.fold_in(context.key("shifts"), index)
        found = shift.predict_shifted(
            name, key, q, apply, images.image, context.options.shift_draws, severities
        )
        found = jax.device_get(found)
        return (jax.tree.map(lambda a, i=i: a[i], found) for i in range(len(severities)))

    (clean,) = predictions(shifts.NAMES[0], (0,))
    numbers: dict[str, Any] = {
        "images": len(images.label),
        "draws": context.options.shift_draws,
        "clean": {mode: metrics(m) for mode, m in shift.calibration(clean, images.label, counts).items()},
    }
    context.tick(ticks)
    replicates: dict[str, list[Any]] = {}
    for name in shifts.NAMES:
        numbers[name] = {}
        for severity, found in enumerate(predictions(name, (1, 2, 3, 4, 5)), start=1):
            measured = shift.calibration(found, images.label, counts)
            numbers[name][str(severity)] = {mode: metrics(m) for mode, m in measured.items()} | {
                "detection": plain(shift.detect(clean.mc, found.mc))
            }
            for mode, m in measured.items():
                for metric, values in m.replicates.items():
                    replicates.setdefault(f"{mode}/replicates/{metric}", []).append(values)
        context.tick(ticks)
    shape = (len(shifts.NAMES), 5, RESAMPLES)
    return Result(numbers, {key: np.stack(values).reshape(shape) for key, values in replicates.items()})


def measure_ood(context: Context) -> Result:
    """Measure how well uncertainty detects noise, textures and other images."""
    known = context.sample_images(context.options.shift_images)
    count, shape = len(known.label), known.image.shape[1:]
    rng = np.random.default_rng(context.options.seed)
    kinds = {
        "uniform noise": rng.integers(0, 256, (count, *shape), np.uint8),
        "textures": textures(rng, count, shape),
    }
    if context.ood is not None:
        kinds["data"] = context.ood.image[:count]
    q, apply = context.model.classifier()
    draws = context.options.shift_draws
    inside = shift.predict(context.key("draws"), q, apply, known.image, draws).mc
    context.tick(len(kinds) + 1)
    numbers: dict[str, Any] = {"images": count, "draws": draws}
    arrays: dict[str, Any] = {f"known/{score}": getattr(inside, score) for score in shift.SCORES}
    for name, images in kinds.items():
        outside = shift.predict(context.key("draws"), q, apply, images, draws).mc
        numbers[name] = plain(shift.detect(inside, outside))
        arrays |= {f"{name}/{score}": getattr(outside, score) for score in shift.SCORES}
        context.tick(len(kinds) + 1)
    return Result(numbers, arrays)


def textures(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return smooth random patterns, uint8, whose spectrum falls off as that of natural textures."""
    height, width, channels = shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    frequency[0, 0] = np.inf
    spectrum = np.fft.fft2(rng.normal(size=(count, channels, height, width))) / frequency**1.5
    field = np.fft.ifft2(spectrum).real
    low, high = field.min(axis=(2, 3), keepdims=True), field.max(axis=(2, 3), keepdims=True)
    return np.moveaxis((255 * (field - low) / (high - low)).astype(np.uint8), 1, -1)
