"""Write the table of how public functions transform in docs/transformations.md, from measurements.

Run it after a change of these functions:

    python -m tools.transformations_table
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from byov_jax import Posterior, metrics, posterior, predictive, pruning, shifts
from tools import compilations

PAGE = Path(__file__).parents[1] / "docs" / "transformations.md"
BEGIN = "<!-- transformations, written by python -m tools.transformations_table -->"
END = "<!-- end of transformations -->"
MODULES = {
    "metrics": metrics,
    "posterior": posterior,
    "predictive": predictive,
    "pruning": pruning,
    "shifts": shifts,
}
ON_THE_HOST = {
    "metrics.Calibration.init": "makes an empty accumulator",
    "posterior.collect": "gathers the posteriors of a tree, computes nothing",
    "posterior.mean": "returns the mean as it is",
    "posterior.point": "wraps parameters, computes nothing",
    "posterior.size": "counts in Python integers",
    "pruning.sparsity": "counts in Python integers",
    "pruning.sweep": "a loop over masks, calls `evaluate`",
}
"""Functions that are not transformed, and why."""

N, CLASSES, DRAWS = 12, 3, 4


class Row(NamedTuple):
    """What was measured of a function.

    Attributes:
      jit: whether it gives the same inside `jax.jit`.
      vmap: whether `jax.vmap` gives the same as a loop.
      gradient: "finite", "zero", or "none" where the result has no floating-point numbers.
      bfloat16: the dtype of the result for bfloat16 arguments.
      float64: the dtype for float64 arguments with 64 bits enabled.
      programs: programs compiled by the first call outside jit, and by a second call of the same shapes.
    """

    jit: bool
    vmap: bool
    gradient: str
    bfloat16: str
    float64: str
    programs: tuple[int, int]


def main() -> int:
    """Rewrite the table and return the exit code."""
    PAGE.write_text(updated(PAGE.read_text(), {name: measure(name) for name in sorted(EXAMPLES)}))
    print(PAGE)
    return 0


def updated(page: str, rows: dict[str, Row]) -> str:
    """Return the page with the table of `rows` between the two comments."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{rest.split(END)[1]}"


def table(rows: dict[str, Row]) -> str:
    """Return the rows, and the functions that are not transformed, as a Markdown table."""
    head = ("function", "jit", "vmap", "gradient", "bfloat16 gives", "float64 gives", "programs")
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head))]
    return "\n".join([*lines, *(line(name, rows.get(name)) for name in public_functions())])


def line(name: str, row: Row | None) -> str:
    """Return a line of the table; None for a function that is not transformed."""
    cells = [*["-"] * 5, ON_THE_HOST.get(name, "")]
    if row is not None:
        same = ["same" if equal else "DIFFERENT" for equal in (row.jit, row.vmap)]
        cells = [*same, row.gradient, row.bfloat16, row.float64, "{}, then {}".format(*row.programs)]
    return f"| `{name}` | {' | '.join(cells)} |"


def public_functions() -> Iterator[str]:
    """Yield the functions of `MODULES`, and the methods of the accumulator, by name."""
    for prefix, module in MODULES.items():
        for name, value in sorted(vars(module).items()):
            if name.startswith("_") or not getattr(value, "__module__", "").startswith(module.__name__):
                continue
            if value is metrics.Calibration:
                methods = ("init", "update", "merge", "compute")
                yield from (f"{prefix}.{name}.{method}" for method in methods)
            elif callable(value) and not inspect.isclass(value):
                yield f"{prefix}.{name}"


def measure(name: str) -> Row:
    """Transform the example of a function in every way."""
    call, arguments = EXAMPLES[name]
    one, other = (jax.tree.map(jnp.asarray, arguments(seed)) for seed in (0, 1))
    programs = compilations.of_two_calls(lambda: call(*one))
    expected = [call(*one), call(*other)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, other)
    loop = jax.tree.map(lambda *leaves: np.stack(leaves), *expected)
    with jax.enable_x64(True):
        wide = call(*_cast(one, np.float64))
    return Row(
        jit=_equal(jax.jit(call)(*one), expected[0]),
        vmap=_equal(jax.jit(jax.vmap(call))(*stacked), loop),
        gradient=_gradient(call, one),
        bfloat16=_dtypes(call(*_cast(one, jnp.bfloat16))),
        float64=_dtypes(wide),
        programs=programs,
    )


def _equal(found: Any, expected: Any) -> bool:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in pairs)


def _gradient(call: Callable[..., Any], arguments: tuple) -> str:
    """Describe the gradient of the sum of the results by the first argument."""

    def total(first: Any) -> Any:
        floats = [x for x in jax.tree.leaves(call(first, *arguments[1:])) if _is_float(x)]
        return sum(jnp.sum(x) for x in floats) if floats else 0.0

    if not all(any(map(_is_float, jax.tree.leaves(tree))) for tree in (arguments[0], call(*arguments))):
        return "none"
    gradient = jax.grad(total)(arguments[0])
    if not np.all(np.isfinite(gradient)):
        return "NOT FINITE"
    return "finite" if np.any(gradient) else "zero"


def _cast(arguments: tuple, dtype: Any) -> tuple:
    """Cast every floating-point array of the arguments."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if _is_float(x) else x, arguments)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def _dtypes(result: Any) -> str:
    return ", ".join(sorted({str(jnp.result_type(leaf)) for leaf in jax.tree.leaves(result)}))


def _probs(seed: int, *shape: int) -> np.ndarray:
    """Return probabilities with sixteenths, exact zeros and ones and ties among them."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 17, shape)
    second = np.floor(rng.random(shape) * (17 - first))
    first.flat[0], second.flat[0] = 16, 0  # a confident sample
    return (np.stack([first, second, 16 - first - second], axis=-1) / 16).astype(np.float32)


def _predictions(seed: int) -> tuple:
    return _probs(seed, N), np.random.default_rng(seed).integers(0, CLASSES, N).astype(np.int32)


def _draws(seed: int) -> tuple:
    draws = _probs(seed, DRAWS, N)
    draws[:, 0] = draws[:1, 0]  # draws that agree: a variance of zero
    return (draws,)


def _scores(seed: int) -> tuple:
    rng = np.random.default_rng(seed)
    return tuple(
        (rng.integers(0, 9, n) / 8 + shift).astype(np.float32) for n, shift in ((N, 0), (N + 3, 0.5))
    )


def _retrieval(seed: int) -> tuple:
    """Return features with exact cosines, ties and a duplicate; labels and uncertainties."""
    rng = np.random.default_rng(seed)
    features = rng.permuted(np.tile(np.array([1, 1, -1, -1, 0, 0], np.float32), (N, 1)), axis=1)
    features[1] = features[0]
    return features, rng.integers(0, CLASSES, N).astype(np.int32), _scores(seed)[0]


def _accumulated(probs: Any, labels: Any) -> metrics.Calibration:
    return metrics.Calibration.init(CLASSES).update(probs, labels)


def _gaussian(seed: int) -> tuple:
    rng = np.random.default_rng(seed)
    mean, inputs = (rng.normal(size=shape).astype(np.float32) for shape in ((5, CLASSES), (N, 5)))
    return mean, np.full_like(mean, -2.0), inputs


def _moments(seed: int) -> tuple:
    mean, log_var, prior_mean = np.random.default_rng(seed).normal(size=(3, 5, CLASSES)).astype(np.float32)
    return mean, log_var - 2, prior_mean, jax.random.key(seed)


def _posterior(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(mean: Any, log_var: Any, prior_mean: Any, key: Any) -> Any:
        return function(Posterior({"kernel": mean}, {"kernel": log_var}), {"kernel": prior_mean}, key)

    return call


def _kl(name: str) -> Callable[..., Any]:
    return _posterior(lambda q, prior_mean, key: getattr(posterior, name)(q, prior_mean))


def _prune(seed: int) -> tuple:
    weights = np.random.default_rng(seed).normal(size=(5, 7)).astype(np.float32)
    return weights, np.array([0.3, 0.7], np.float32)[seed]


def _images(seed: int) -> tuple:
    images = np.random.default_rng(seed).random((2, 8, 8, 3)).astype(np.float32)
    return images, np.int32(3 - seed), jax.random.key(seed)


def _planes(seed: int, name: str) -> tuple:
    images, _, key = _images(seed)
    return np.moveaxis(images[0], -1, 0), key, np.float32(shifts.STRENGTHS[name].small[2 + seed])


def _classify(params: Any, x: Any) -> Any:
    return jax.nn.softmax(x @ params["kernel"])


def _predict(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(mean: Any, log_var: Any, x: Any) -> Any:
        q = Posterior({"kernel": mean}, {"kernel": log_var})
        return function(jax.random.key(0), q, _classify, x, DRAWS)

    return call


def _shift(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda planes, key, strength: function(key, planes, strength)


Example = tuple[Callable[..., Any], Callable[[int], tuple]]
EXAMPLES: dict[str, Example] = {
    **{
        f"metrics.{name}": (getattr(metrics, name), _predictions)
        for name in ("adaptive_ece", "brier", "brier_decomposition", "ece", "mce", "nll", "reliability_bins")
    },
    **{f"metrics.{name}": (getattr(metrics, name), _scores) for name in ("auroc", "aupr", "fpr95")},
    **{
        f"metrics.{name}": (getattr(metrics, name), _draws)
        for name in ("mutual_information", "predictive_std")
    },
    "metrics.crop_test": (metrics.crop_test, lambda seed: tuple(scores[:N] for scores in _scores(seed))),
    "metrics.entropy": (metrics.entropy, lambda seed: _predictions(seed)[:1]),
    "metrics.r_auroc": (metrics.r_auroc, _retrieval),
    "metrics.recall_at_1": (metrics.recall_at_1, lambda seed: _retrieval(seed)[:2]),
    "metrics.risk_coverage": (metrics.risk_coverage, _predictions),
    "metrics.top_k": (lambda probs, labels: metrics.top_k(probs, labels, 2), _predictions),
    "metrics.Calibration.update": (_accumulated, _predictions),
    "metrics.Calibration.merge": (
        lambda probs, labels: _accumulated(probs, labels).merge(_accumulated(probs, labels)),
        _predictions,
    ),
    "metrics.Calibration.compute": (lambda *batch: _accumulated(*batch).compute(), _predictions),
    **{
        f"posterior.{name}": (_kl(name), _moments)
        for name in ("kl", "kl_by_leaf", "kl_gradient", "implied_l2")
    },
    "posterior.init": (_posterior(lambda q, prior_mean, key: posterior.init(q.mean)), _moments),
    "posterior.sample": (_posterior(lambda q, prior_mean, key: posterior.sample(key, q)), _moments),
    "posterior.snr": (_posterior(lambda q, prior_mean, key: posterior.snr(q)), _moments),
    **{
        f"predictive.{name}": (_predict(getattr(predictive, name)), _gaussian)
        for name in ("predict", "moments", "statistics")
    },
    "pruning.snr_mask": (
        lambda mean, keep: pruning.snr_mask(Posterior({"kernel": mean}, {"kernel": mean}), keep),
        _prune,
    ),
    "pruning.magnitude_mask": (lambda kernel, keep: pruning.magnitude_mask({"kernel": kernel}, keep), _prune),
    "pruning.random_mask": (
        lambda kernel, keep: pruning.random_mask(jax.random.key(0), {"kernel": kernel}, keep),
        _prune,
    ),
    "pruning.apply": (
        lambda kernel, keep: pruning.apply({"kernel": kernel > keep}, {"kernel": kernel}),
        _prune,
    ),
    "shifts.apply": (lambda images, severity, key: shifts.apply("contrast", severity, key, images), _images),
    "shifts.corrupt": (lambda images, _, key: shifts.corrupt("shear", 0.2, key, images), _images),
    "shifts.strength": (
        lambda severity: shifts.strength("contrast", severity, 32),
        lambda seed: _images(seed)[1:2],
    ),
    **{
        f"shifts.{name}": (_shift(getattr(shifts, name)), partial(_planes, name=name))
        for name in shifts.NAMES
    },
}
"""By name: a function of arrays that calls the public one, and its arguments for a seed."""


if __name__ == "__main__":
    sys.exit(main())
