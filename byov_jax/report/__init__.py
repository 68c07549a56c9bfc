"""Report on runs: result files -> figures -> one self-contained HTML page. Loads no model and no data."""

from collections.abc import Sequence
from pathlib import Path


def write(runs: Sequence[Path], out: Path, baseline: Path | None = None) -> Path:
    """Write the report on some runs as one HTML file, with its figures as files beside it.

    Args:
      runs: run directories, or folders of them (a sweep).
      out: the HTML file; its figures go to `<stem>_figures/` beside it, as PNG, SVG and CSV.
      baseline: the run that all differences refer to; the first BYOL run among `runs` if None.

    Returns:
      `out`.

    Raises:
      RunError: if a file of a run is damaged, or there is no run; then nothing is written.
    """
    from byov_jax.report import page  # imports matplotlib, which takes a second and `aggregate` does not need

    return page.write(runs, out, baseline)
