"""Run directories with made-up numbers, of the form that training and `byov evaluate` write."""

import json

import numpy as np

from byov_jax import files
from byov_jax.images import shifts
from byov_jax.methods import TRAITS
from byov_jax.report.gains import SEVERITIES
from byov_jax.training import run_directory
from byov_jax.training.config import Config

CLASSES = ("cat", "dog", "<b>owl</b>")
IMAGES, RESAMPLES = 60, 40
METRICS = ("top1", "top5", "nll", "brier", "reliability", "resolution", "ece", "mce", "adaptive_ece", "aurc")
KERNELS = (
    "encoder/blocks_0/attention/qkv/kernel",
    "encoder/blocks_0/attention/out/kernel",
    "encoder/blocks_1/mlp/up/kernel",
    "encoder/patch_embedding/kernel",
    "projector/dense_0/kernel",
    "predictor/dense_0/kernel",
)
SIZES = {"top1": 0.8, "top5": 0.98, "nll": 0.6, "resolution": 0.5}


def write_run(run, method="byov", *, parts=None, curves=True, **config):
    """A whole run directory; `parts` are those that were measured, all if None."""
    config = {"method": method, "steps": 20, "data": {"classes": len(CLASSES)}} | config
    config = Config.parse(config).to_dict()
    run.mkdir(parents=True)
    files.write_json(run / run_directory.CONFIG, config)
    files.write_json(run / run_directory.ENVIRONMENT, {"packages": {"jax": "0.10.2"}, "devices": ["cpu:cpu"]})
    rng = np.random.default_rng([config["seed"], *map(ord, method), int(10 * config["beta_end"])])
    bayesian = TRAITS[method].bayesian
    if curves:
        write_lines(run / "metrics.jsonl", metrics(rng, method, bayesian))
        if bayesian:
            write_lines(run / "posterior.jsonl", posterior())
    measured = all_parts(rng, method, bayesian)
    write_evaluation(run, {name: measured[name] for name in (measured if parts is None else parts)})
    return run


def write_lines(file, lines):
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_evaluation(run, measured):
    """Numbers to evaluation.json, arrays to evaluation/PART.npz."""
    (run / run_directory.ARRAYS).mkdir()
    for part, (_, arrays) in measured.items():
        files.write_npz(run / run_directory.ARRAYS / f"{part}.npz", arrays)
    settings = {"model": run.name, "data": "0123", "seed": 0}
    files.write_json(
        run / run_directory.EVALUATION,
        {
            "parts": {part: numbers for part, (numbers, _) in measured.items()},
            "settings": dict.fromkeys(measured, settings),
            "baseline": None,
        },
    )


def metrics(rng, method, bayesian):
    for step in range(1, 21):
        line = {"step": step, "epoch": step / 4, "loss": 2.0 / step, "embedding_std": 0.5, "cosine": None}
        if bayesian:
            line |= {"kl_per_weight": 4.5 - step / 10, "beta": step / 20, "temperature": step / 100}
        if step % 5 == 0:
            line |= {"probe": 0.6 + step / 100, "knn": 0.5 + rng.uniform() / 10}
        yield line


def posterior():
    names = ("sigma_mean", "sigma_max", "snr_mean", "snr_max")
    for epoch in range(4):
        layers = {
            path: {name: (i + 1) * (j + 1) * (1 + epoch) / 100 for i, name in enumerate(names)}
            for j, path in enumerate((*KERNELS, "encoder/norm/scale"))
        }
        yield {"step": 4 * epoch, "epoch": epoch, "layers": layers}


def all_parts(rng, method, bayesian):
    """Numbers and arrays of every part, by name."""
    calibration = {"images": IMAGES, "draws": 30, "classes": CLASSES}, examples(rng)
    for mode in ("mean", "mc") if method.startswith("supervised") else ("mean", "mc", "teacher"):
        calibration[0][mode], replicates = metrics_of(rng, (RESAMPLES,))
        calibration[1].update({f"{mode}/replicates/{name}": value for name, value in replicates.items()})
        samples = np.where(np.arange(15) < 9, 0, 10)
        bins = {"samples": samples, "confidence": np.arange(15) / 15, "accuracy": rng.uniform(size=15)}
        calibration[1].update({f"{mode}/bins/{name}": value for name, value in bins.items()})
    calibration[0]["mc over mean"] = {"top1": interval(0.3)}
    rows = {
        "linear": 0.8,
        "kNN 20": 0.7 + rng.uniform() / 10,
    }
    probed = ["student mean", "student MC", "untrained", "raw pixels"]
    accuracy = dict.fromkeys(probed if method.startswith("supervised") else [*probed, "teacher"], rows)
    parts = {
        "probe": ({"accuracy": accuracy, "draws": 30}, {}),
        "calibration": calibration,
        "shift": shift(rng),
        "pruning": pruning(bayesian),
    }
    if bayesian:
        parts |= {"convergence": convergence(rng), "latent": latent()}
        if method == "byov":
            parts["alignment"] = alignment(rng)
    else:
        parts |= {name: ({"reason": "the model has no posterior"}, {}) for name in ("convergence", "latent")}
    return parts


def metrics_of(rng, shape):
    """Every metric with its interval, and its replicates of the given shape."""
    replicates = {name: SIZES.get(name, 0.1) + 0.02 * rng.normal(size=shape) for name in METRICS}
    return {name: interval(float(values.mean()), 0.04) for name, values in replicates.items()}, replicates


def interval(value, width=0.1):
    return {"value": value, "low": value - width, "high": value + width}


def examples(rng):
    probs = rng.dirichlet(np.ones(len(CLASSES)), IMAGES)
    return {
        "label": rng.integers(0, len(CLASSES), IMAGES),
        "mc/probs": probs,
        "mc/std": rng.uniform(size=IMAGES) / 10,
        "examples/image": rng.integers(0, 256, (8, 6, 5, 1), np.uint8),
        "examples/index": np.arange(8),
        "examples/certain": np.arange(8) < 4,
    }


def shift(rng):
    numbers = {"images": IMAGES, "draws": 6, "clean": {}}
    arrays = {}
    for mode in ("mean", "mc"):
        _, replicates = metrics_of(rng, (len(shifts.NAMES), len(SEVERITIES), RESAMPLES))
        arrays |= {f"{mode}/replicates/{name}": values for name, values in replicates.items()}
        for i, name in enumerate(shifts.NAMES):
            for j, severity in enumerate(SEVERITIES):
                found = {
                    metric: interval(float(values[i, j].mean())) for metric, values in replicates.items()
                }
                numbers.setdefault(name, {}).setdefault(severity, {})[mode] = found
    return numbers, arrays


def pruning(bayesian):
    names = {"magnitude": 1.0, "random": 2.0} | ({"snr": 0.5} if bayesian else {})
    numbers = {"images": IMAGES}
    for name, loss in names.items():
        numbers[name] = [
            {"keep": keep, "sparsity": 1 - keep, "accuracy": 0.8 * keep**loss}
            for keep in (1.0, 0.75, 0.5, 0.1)
        ]
    return numbers, {}


def convergence(rng):
    draws = np.arange(1, 51)
    errors = {"mean_error": 0.2 / np.sqrt(draws), "std_error": 0.1 / np.sqrt(draws)}
    repeats = {name: 0.3 + rng.normal(size=(50, 50)) / (10 * draws) for name in ("mean", "std")}
    return {"images": IMAGES, "repeats": 50, "draws enough": {"0.01": 17}}, {
        "draws": draws
    } | errors | repeats


def latent():
    strengths = [0.0, 0.1, 0.5]
    numbers = {"images": IMAGES, "draws": 50, "strengths": strengths}
    for tap in ("encoder", "projector", "predictor"):
        value = np.array([0.1, 0.15, 0.2])
        numbers[tap] = {"relative": {"value": value, "low": value - 0.01, "high": value + 0.01}}
    return numbers, {}


def alignment(rng):
    x, y = rng.uniform(0.01, 0.1, (2, IMAGES))
    grid = np.linspace(0, 0.12, 16)
    density = np.exp(-((grid[:, None] - 0.05) ** 2 + (grid[None] - 0.06) ** 2) / 0.001)
    numbers = {"images": IMAGES, "draws": 200, "pearson": interval(0.4), "spearman": interval(0.5)}
    return numbers, {"x": x, "y": y, "grid_x": grid, "grid_y": grid, "density": density}
