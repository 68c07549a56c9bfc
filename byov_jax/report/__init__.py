"""Result files of runs -> figures -> one self-contained HTML page. Reads files, never models or data."""

from collections.abc import Sequence
from pathlib import Path


def write(runs: Sequence[Path], out: Path, baseline: Path | None = None) -> Path:
    """Writes the report on some runs: the page, and beside it the figures as files.

    Args:
      runs: run directories, or folders of them (a sweep).
      out: the HTML file; its figures go to `<stem>_figures/` beside it, as PNG, SVG and CSV.
      baseline: the run that differences are taken to; the first BYOL run among `runs` if None.

    Returns:
      `out`.

    Raises:
      RunError: if a file of a run is damaged, or there is no run; then nothing is written.
    """
    from byov_jax.report import page  # matplotlib takes a second to import; tables do without it

    return page.write(runs, out, baseline)
