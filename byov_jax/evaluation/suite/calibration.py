"""Measure calibration on clean images: with the mean weights, with draws, with the teacher."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from byov_jax.data.dataset import Pixels
from byov_jax.evaluation import bootstrap, shift
from byov_jax.evaluation.suite.context import Context
from byov_jax.evaluation.suite.results import Result, gain, metrics

RESAMPLES = 1000
EXAMPLES = 12
"""How many of the most certain and of the least certain test images the report shows."""


def measure_calibration(context: Context) -> Result:
    """Measure accuracy and calibration on the clean test images."""
    label = context.data.test.label
    counts = bootstrap.counts(context.key("resamples"), len(label), RESAMPLES)
    measured = shift.calibration(context.predictions, label, counts)
    context.tick(3)
    if not context.model.supervised:
        probs = context.teacher.predict(context.data.test.image).probs
        measured["teacher"] = bootstrap.calibration(probs, label, counts)
    context.tick(3)
    numbers: dict[str, Any] = {
        "images": len(label),
        "draws": context.options.draws,
        "classes": context.data.classes,
    }
    arrays: dict[str, Any] = {"label": label}
    arrays |= examples(np.asarray(context.predictions.mc.entropy), context.data.test.image)
    for mode, found in measured.items():
        numbers[mode] = metrics(found)
        bins, curve = found.report.reliability_bins, found.report.risk_coverage
        arrays |= {f"{mode}/bins/{name}": value for name, value in bins._asdict().items()}
        arrays |= {f"{mode}/risk_coverage/{name}": value for name, value in curve._asdict().items()}
        arrays |= {f"{mode}/replicates/{name}": value for name, value in found.replicates.items()}
    for mode, prediction in context.predictions._asdict().items():
        numbers[mode] |= {
            name: float(jnp.mean(getattr(prediction, name)))
            for name in ("std", "expected_entropy", "mutual_information", "latent_variance")
        }
        arrays |= {
            f"{mode}/{name}": value for name, value in prediction._asdict().items() if name != "others"
        }
    numbers["mc over mean"] = {
        name: gain(
            name,
            getattr(measured["mc"].report, name),
            measured["mc"].replicates[name],
            getattr(measured["mean"].report, name),
            measured["mean"].replicates[name],
        )
        for name in bootstrap.BETTER
    }
    context.tick(3)
    return Result(numbers, arrays)


def examples(entropy: np.ndarray, image: Pixels) -> dict[str, np.ndarray]:
    """Return the images with the least and the greatest entropy; ties go to the earlier one.

    Args:
      entropy: of the mean prediction, [n].
      image: the images, [n, height, width, channels].

    Returns:
      `examples/image`; `examples/index`, its place among all images; `examples/certain`, True for the first
      half, most certain first, and False for the second, least certain first.
    """
    count = min(EXAMPLES, len(entropy) // 2)
    most, least = (np.argsort(order, kind="stable")[:count] for order in (entropy, -entropy))
    index = np.concatenate([most, least])
    certain = np.arange(2 * count) < count
    return {"examples/image": image[index], "examples/index": index, "examples/certain": certain}
