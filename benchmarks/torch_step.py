"""Time of BYOL's and BYOV's training step relative to PyTorch: eager, torch.compile and bayesian-torch.

    pip install -e ".[torch]"
    python -m benchmarks.torch_step [--repeats=15] [--json=FILE]

All take whole steps on two given views: student on both, teacher, loss, gradient, AdamW, teacher's update.
They run in turn in one process with the same number of threads; a ratio is the median over neighbouring runs,
which cancels drifts of the machine's speed. Before, the PyTorch network is given our weights, and the
benchmark fails unless losses, gradients and the first three steps agree. In bayesian-torch the linear layers
are Bayesian, not the norms, and each view has a draw of its own, which is how the package works.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import byov_jax as byov
from benchmarks.step import CASES
from byov_jax.methods import Inputs, objectives

CASE = CASES["small"]
TAU = 0.99
RATIOS = (
    ("byol", "torch eager"),
    ("byol", "torch.compile"),
    ("byov", "bayesian-torch"),
    ("byov", "byol"),
    ("bayesian-torch", "torch eager"),
)
MICRO_BATCH = 16


def main() -> int:
    """Parse the command line, measure and print JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torch_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds of steps (default: 15)")
    parser.add_argument("--json", metavar="FILE", help="also write the result to this file")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats={arguments.repeats} must be at least 1")
    if importlib.util.find_spec("torch") is None:
        print('nothing to compare with: install PyTorch by pip install -e ".[torch]"')
        return 0

    text = json.dumps(measure(arguments.repeats), indent=2)
    print(text)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(text + "\n")
    return 0


def measure(repeats: int) -> dict[str, Any]:
    """Check that the steps agree and time them in turn."""
    import torch

    torch.set_num_threads(threads())
    views = np.random.default_rng(0).standard_normal((2, *CASE.shape), np.float32)
    methods = our_methods()
    errors = check(methods["byol"], views)
    steps = {name: our_step(method, views) for name, method in methods.items()}
    steps |= torch_steps(initial_weights(methods["byol"], views), views)
    skipped, first = {}, {}
    for name, step in list(steps.items()):
        start = time.perf_counter()
        try:
            step()
        except RuntimeError as error:  # torch.compile without a C++ compiler
            skipped[name] = str(error).splitlines()[0]
            del steps[name]
            continue
        first[name] = round(time.perf_counter() - start, 2)

    seconds = take_turns(steps, repeats)
    ratios = {}
    for ours, other in RATIOS:
        if ours in seconds and other in seconds:
            pairs = [x / y for x, y in zip(seconds[ours], seconds[other], strict=True)]
            ratios[f"{ours} / {other}"] = {
                "median": round(statistics.median(pairs), 3),
                "range": [round(min(pairs), 3), round(max(pairs), 3)],
            }
    return {
        "case": CASE.title,
        "jax": jax.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        **errors,
        "ratios": ratios,
        "step_seconds": {name: round(statistics.median(times), 4) for name, times in seconds.items()},
        "first_step_seconds": first,
        "skipped": skipped,
    }


def threads() -> int:
    """Return the number of threads that JAX uses on a CPU."""
    available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return int(os.environ.get("NPROC") or available)


def our_methods() -> dict[str, byov.methods.Method]:
    """Return both methods on given views."""

    def given(keys: Any, images: Any) -> tuple[Any, ...]:
        return images[:, 0], images[:, 1]

    optimizer = byov.optimizers.adamw(1e-3)
    return {
        "byol": byov.methods.byol(CASE.student(), optimizer, views=given, tau=TAU),
        "byov": byov.methods.byov(
            CASE.student(), optimizer, views=given, tau=TAU, beta=1.0, dataset_size=10_000
        ),
    }


def our_batch(views: np.ndarray) -> byov.Batch:
    """Return views [2, batch, ...] as the crops of a batch."""
    return byov.Batch(jax.device_put(np.swapaxes(views, 0, 1)))


def our_step(method: byov.methods.Method, views: np.ndarray) -> Callable[[], float]:
    """Return a function that takes a step and returns its loss."""
    batch, key = our_batch(views), jax.random.key(0)
    state = method.init(key, batch)
    step = jax.jit(method.step, donate_argnums=0)

    def take() -> float:
        nonlocal state
        state, info = jax.block_until_ready(step(state, batch, key))
        return float(info.loss)

    return take


def initial_weights(method: byov.methods.Method, views: np.ndarray) -> Any:
    """Return the weights that `our_step` starts from."""
    return method.init(jax.random.key(0), our_batch(views)).posterior.mean


def torch_steps(params: Any, views: np.ndarray) -> dict[str, Callable[[], float]]:
    """Return the functions that take PyTorch's steps, by name, from our weights."""
    import torch

    from benchmarks import torch_model

    x1, x2 = (torch.from_numpy(view) for view in views)

    def build(sigma: float = 0.0, **options: bool) -> Callable[[], float]:
        network, teacher = (torch_model.student(CASE.student(), params, CASE.shape[1]) for _ in range(2))
        if sigma:
            network = torch_model.bayesian(network, sigma)
        step = torch_model.Step(network, teacher[:2], tau=TAU, **options)
        return lambda: step(x1, x2)

    steps = {"torch eager": build(), "torch.compile": build(compiled=True)}
    if importlib.util.find_spec("bayesian_torch") is not None:
        steps["bayesian-torch"] = build(sigma=float(np.exp(-5.0)))
    return steps


def check(method: byov.methods.Method, views: np.ndarray) -> dict[str, float]:
    """Fail unless PyTorch computes our loss, gradient and first three steps; return the relative errors."""
    gradient_errors = list(_gradient_errors(initial_weights(method, views), method, views))
    ours, theirs = our_step(method, views), torch_steps(initial_weights(method, views), views)["torch eager"]
    losses = np.array([(ours(), theirs()) for _ in range(3)])
    loss_errors = np.abs(losses[:, 1] / losses[:, 0] - 1.0)
    # A few units lie within rounding of ReLU's kink, and change the gradient of some micro-batches by 0.1%.
    errors = {
        "loss_error": float(loss_errors[0]),
        "gradient_error": statistics.median(gradient_errors),
        "third_loss_error": float(loss_errors[2]),
    }
    for name, bound in (("loss_error", 1e-5), ("gradient_error", 1e-4), ("third_loss_error", 1e-3)):
        if not errors[name] < bound:
            raise AssertionError(f"PyTorch computes something else: {name} is {errors[name]:.2g}")
    return {name: float(f"{error:.2g}") for name, error in errors.items()}


def _gradient_errors(params: Any, method: byov.methods.Method, views: np.ndarray) -> Iterator[float]:
    """Yield the relative error of PyTorch's gradient for each micro-batch."""
    import torch

    from benchmarks import torch_model

    state = method.init(jax.random.key(0), our_batch(views))
    objective, side = objectives.bootstrap(CASE.student()), CASE.shape[1]

    @jax.jit
    def gradient(views: tuple[jax.Array, ...]) -> Any:
        inputs = Inputs(views, None, state.stats, state.teacher, jax.random.key(0))
        return jax.grad(lambda weights: objective((weights,) * 2, inputs)[0])(state.posterior.mean)

    network, teacher = (torch_model.student(CASE.student(), params, side) for _ in range(2))
    step = torch_model.Step(network, teacher[:2], tau=TAU)
    for start in range(0, views.shape[1], MICRO_BATCH):
        x1, x2 = views[:, start : start + MICRO_BATCH]
        step.backward(torch.from_numpy(x1), torch.from_numpy(x2))
        ours = torch_model.student(CASE.student(), gradient((x1, x2)), side)
        difference = [
            p.grad - q.detach() for p, q in zip(network.parameters(), ours.parameters(), strict=True)
        ]
        yield _norm(difference) / _norm(ours.parameters())


def _norm(tensors: Any) -> float:
    """Return the norm of all tensors together."""
    return sum(float(tensor.detach().square().sum()) for tensor in tensors) ** 0.5


def take_turns(steps: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each step's runs, one run of every step after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
