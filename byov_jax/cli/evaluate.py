"""Every measurement of the paper on a trained run.

    byov evaluate --run=DIR [--baseline=RUN] [--supervised=RUN] [--only=calibration,shift]

writes DIR/evaluation.json, and the arrays behind the figures to DIR/evaluation/PART.npz. The parts:

  probe        linear and nearest-neighbour accuracy, with all labels, 10% and 1% of them; raw pixels and the
               untrained network beside it
  calibration  accuracy, ECE, Brier score and its parts, NLL, reliability diagram, selective prediction: with
               the mean weights, with draws, with the teacher
  convergence  how many draws are enough
  shift        the same under 12 shifts x 5 severities, and whether uncertainty detects them
  ood          whether uncertainty detects noise, textures and (--ood) another data set
  pruning      accuracy against sparsity: by signal-to-noise ratio, by magnitude, at random
  latent       variance after encoder, projector and predictor against the strength of noise
  alignment    correlation of uncertainty with a supervised Bayesian model (--supervised)
  layers       sigma and signal-to-noise ratio, layer by layer

A part that was measured before with the same settings is not measured again.
"""

import argparse
import sys
from pathlib import Path

from byov_jax.cli import command, compilation
from byov_jax.evaluation.suite import PARTS, Options
from byov_jax.evaluation.suite import run as suite
from byov_jax.evaluation.suite.context import Progress
from byov_jax.evaluation.suite.evaluator import Evaluator
from byov_jax.training import run_directory

INTEGERS = {
    "seed": (0, "seed of draws and noise"),
    "draws": (1, "weight draws per prediction"),
    "shift_draws": (1, "the same under shifts"),
    "shift_images": (1, "test images under each shift, chosen at random"),
    "std_draws": (1, "draws for the std of the part alignment; the paper has 1000"),
    "blocks": (0, "also probe the features of this many last blocks of a ViT"),
}
"""The options that are integers: the least value, and the meaning."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = parse(argv)
    interrupted = "interrupted; finished parts are kept, run the same command again"
    return command.run("evaluate", lambda: _start(arguments), interrupted)


def _start(arguments: argparse.Namespace) -> None:
    compilation.enable(arguments.compilation_cache)
    evaluator, baseline = evaluate(arguments)
    print(f"{evaluator.summary(baseline)}\n\n{arguments.run / run_directory.EVALUATION}")


def evaluate(
    arguments: argparse.Namespace, progress: Progress | None = None
) -> tuple[Evaluator, Evaluator | None]:
    """Measure what is missing and write evaluation.json; return both evaluators."""
    options = Options(**{name: getattr(arguments, name) for name in Options._fields})
    shared = {"data": arguments.data, "options": options, "progress": progress}
    evaluator = suite.open_run(arguments.run, supervised=arguments.supervised, ood=arguments.ood, **shared)
    baseline = suite.open_run(arguments.baseline, **shared) if arguments.baseline else None
    if baseline is not None:
        baseline.measure([part for part in arguments.only if PARTS[part].baseline])
    evaluator.measure(arguments.only)
    suite.write_result(arguments.run, evaluator, baseline)
    return evaluator, baseline


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the arguments of the command."""
    parser = command.parser("evaluate", __doc__)
    defaults = Options()
    add = parser.add_argument
    add("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    add("--only", default=",".join(PARTS), metavar="PARTS", help="parts, separated by commas (default: all)")
    add("--baseline", type=Path, metavar="RUN", help="another run, such as BYOL's, to report gains over")
    add("--supervised", type=Path, metavar="RUN", help="a supervised_bbb run, for the part alignment")
    add("--data", metavar="DATA", help="labelled images, as in config.data.source (default: the run's own)")
    add("--ood", metavar="DATA", help="images of another kind, for the part ood")
    for name, (_, meaning) in INTEGERS.items():
        default = getattr(defaults, name)
        add(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} (default: {default})")
    labels, features = ",".join(map(str, defaults.labels)), ",".join(defaults.features)
    add(
        "--labels",
        default=labels,
        metavar="FRACTIONS",
        help=f"probe: also fit probes on these fractions of the labels (default: {labels}; may be empty)",
    )
    add(
        "--features",
        default=features,
        metavar="NAMES",
        help=f"probe: whose features, beside the student's (default: {features})",
    )
    add("--refit", action="store_true", help="pruning: also fit a new probe on each pruned encoder (slow)")
    compilation.add_flag(parser)
    arguments = parser.parse_args(argv)
    arguments.only = arguments.only.split(",")
    if unknown := [part for part in arguments.only if part not in PARTS]:
        parser.error(f"--only={unknown[0]}: expected parts among {', '.join(PARTS)}")
    arguments.features = tuple(arguments.features.split(","))
    if unknown := [name for name in arguments.features if name not in defaults.features]:
        parser.error(f"--features={unknown[0]}: expected names among {', '.join(defaults.features)}")
    try:
        arguments.labels = tuple(float(text) for text in arguments.labels.split(",") if text)
    except ValueError:
        parser.error(f"--labels={arguments.labels}: expected fractions separated by commas")
    if not all(0.0 < fraction < 1.0 for fraction in arguments.labels):
        parser.error(f"--labels={arguments.labels}: expected fractions above 0 and below 1")
    for name, (least, _) in INTEGERS.items():
        if getattr(arguments, name) < least:
            parser.error(f"--{name}={getattr(arguments, name)} must be at least {least}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
