"""Calibration on clean images: with the mean weights, with draws, with the teacher."""

from typing import Any

import jax.numpy as jnp

from byov_jax.evaluate import bootstrap, comparison, shift
from experiments.measure.numbers import gain, metrics
from experiments.measure.subject import Result, Subject

RESAMPLES = 1000


def measure_calibration(subject: Subject) -> Result:
    """Accuracy and calibration on the clean test images, with the mean weights and with draws."""
    label = subject.data.test.label
    counts = bootstrap.counts(subject.key("resamples"), len(label), RESAMPLES)
    measured = shift.measure(subject.predictions, label, counts)
    subject.tick(3)
    if not subject.model.supervised:
        probs = subject.teacher.predict(subject.data.test.image).probs
        measured["teacher"] = comparison.measure(probs, label, counts)
    subject.tick(3)
    numbers: dict[str, Any] = {"images": len(label), "draws": subject.options.draws}
    arrays: dict[str, Any] = {"label": label}
    for mode, found in measured.items():
        numbers[mode] = metrics(found)
        bins, curve = found.report.reliability_bins, found.report.risk_coverage
        arrays |= {f"{mode}/bins/{name}": value for name, value in bins._asdict().items()}
        arrays |= {f"{mode}/risk_coverage/{name}": value for name, value in curve._asdict().items()}
        arrays |= {f"{mode}/replicates/{name}": value for name, value in found.replicates.items()}
    for mode, prediction in subject.predictions._asdict().items():
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
        for name in comparison.BETTER
    }
    subject.tick(3)
    return Result(numbers, arrays)
