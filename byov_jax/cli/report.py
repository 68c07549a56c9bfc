"""Draw the figures of some runs on one HTML page.

    byov report RUN [RUN ...] --out=report.html [--baseline=RUN]

A RUN is a run directory that was trained and evaluated, or a folder of them (a sweep). The page is
self-contained: summary with intervals, prior x beta over seeds, training curves, sigma and signal-to-noise
ratio by layer, reliability diagrams, shifts, pruning, convergence over draws, latent variance, alignment with
a supervised run, and the images that a run is most and least certain of. The folder report_figures/, next to
the page, has each figure as PNG and SVG, and its numbers as CSV.

The page lists what was not measured, with the command that measures it. To measure everything:

    byov evaluate --run=runs/byov --baseline=runs/byol --supervised=runs/supervised_bbb
    byov report runs/byov runs/byol runs/supervised_bbb --out=report.html
"""

import argparse
import sys
from pathlib import Path

from byov_jax import report
from byov_jax.cli import command


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _arguments(argv)

    def work() -> None:
        print(report.write(arguments.runs, arguments.out, arguments.baseline))

    return command.run("report", work, "interrupted")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = command.parser("report", __doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a run directory, or a folder of them"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: report.html)",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="RUN",
        help="the run that differences are taken to (default: the first BYOL run)",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
