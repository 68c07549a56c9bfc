"""Write the page, one self-contained HTML file from the templates, and the figures beside it as files."""

import base64
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from byov_jax.errors import RunError
from byov_jax.files import write_text
from byov_jax.report import aggregate, formatting, missing, rendering, summary
from byov_jax.report.comparison import Comparison, read_runs
from byov_jax.report.figures import FIGURES
from byov_jax.report.plotting import Figure, Panel
from byov_jax.report.rendering import RenderedPanel
from byov_jax.report.runs import Run
from byov_jax.training import run_directory

MAX_RUNS = 8
"""The summary table of more runs is folded."""

PIVOT_METRICS = ("top1", "ece", "reliability", "resolution")

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("byov_jax.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters["fixed"] = formatting.fixed
TEMPLATES.filters["signed"] = formatting.signed
TEMPLATES.filters["base64"] = lambda data: base64.b64encode(data).decode()
TEMPLATES.tests["finite"] = math.isfinite
TEMPLATES.globals["interval"] = formatting.interval

RenderedFigure = tuple[Figure, list[RenderedPanel]]
PagePanel = tuple[Panel, RenderedPanel]


class Section(NamedTuple):
    """A section of the page.

    Attributes:
      name: its anchor, and the name of its files.
      kind: its topic in a word or two.
      title: the main result.
      macro: the macro of sections.html.jinja that renders `content`.
      content: arguments of the macro.
      caption: sentences below the content.
      files: suffixes of the files that belong to it.
    """

    name: str
    kind: str
    title: str
    macro: str
    content: dict[str, Any]
    caption: Sequence[str] = ()
    files: Sequence[str] = ()


def write(runs: Sequence[Path], out: Path, baseline: Path | None = None) -> Path:
    """Read the runs, render, and write the page and its figures; see `byov_jax.report.write`."""
    if out.is_dir():
        raise RunError(f"{out} is a directory: name a file, {out / 'report.html'} for instance")
    if blocking := next((parent for parent in out.parents if parent.is_file()), None):
        raise RunError(f"{out} cannot be written: {blocking} is a file, not a directory")
    comparison = read_runs(runs, baseline)
    figures = [figure for make in FIGURES if (figure := make(comparison))]
    rendered = [(figure, rendering.render(figure)) for figure in figures]
    folder = out.with_name(f"{out.stem}_figures")
    html = page(comparison, rendered, folder.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    _write_files(comparison, rendered, folder)
    write_text(out, html)
    return out


def page(comparison: Comparison, figures: Sequence[RenderedFigure], folder: str) -> str:
    """Render the page; `folder` holds the files of the figures, relative to the page."""
    sections = [*_tables(comparison), *itertools.starmap(_figure, figures)]
    sections += [*_missing(comparison), _runs(comparison)]
    return TEMPLATES.get_template("page.html.jinja").render(
        heading=_heading(comparison), lead=_lead(comparison), sections=sections, folder=folder
    )


def _heading(comparison: Comparison) -> str:
    methods = dict.fromkeys(run.name.split(" · ")[0] for run in comparison.runs)
    sources = dict.fromkeys(Path(run.source).stem for run in comparison.runs)
    return f"{formatting.listing(list(methods))} on {formatting.listing(list(sources))}"


def _lead(comparison: Comparison) -> str:
    count, featured = len(comparison.runs), len(comparison.featured)
    sentences = [f"{formatting.plural(count, 'run')}."]
    if comparison.baseline:
        sentences.append(f"Differences are to {comparison.baseline.name}.")
    if count > featured:
        settings = f"{'the first ' if len(comparison.settings) > featured else ''}{featured} settings"
        sentences.append(
            f"Tables and training curves have all of them; the other figures show {featured}, the lowest "
            f"seed of each of {settings}."
        )
    return " ".join(sentences)


def _tables(comparison: Comparison) -> Iterator[Section]:
    if rows := summary.rows(comparison):
        content = summary_content(rows, len(comparison.runs))
        title, caption = summary.title(comparison, rows), summary.caption(comparison)
        yield Section("summary", "Summary", title, "summary", content, caption, ("csv",))
    if swept := _swept(comparison):
        content = {
            "pivots": {mode: aggregate.pivot(swept, mode) for mode in ("mc", "mean")},
            "has_draws": any(row.mode == "mc" for row in swept),
            "metrics": {name: aggregate.METRICS[name] for name in PIVOT_METRICS},
            "show_seeds": len({len(row.seeds) for row in swept}) > 1,
        }
        title, caption = aggregate.title(swept), aggregate.caption(swept)
        yield Section("sweep", "Sweep", title, "sweep", content, caption, ("csv", "md"))


def summary_content(rows: Sequence[summary.Row], runs: int = 1) -> dict[str, Any]:
    """Return the arguments of the macro that renders the summary table; a long table is folded."""
    columns = [column for column in summary.COLUMNS if any(column in row.values for row in rows)]
    return {
        "rows": rows,
        "columns": {column: summary.COLUMNS[column] for column in columns},
        "best": {column: summary.best(rows, column) for column in columns},
        "folded": runs if runs > MAX_RUNS else 0,
    }


def _swept(comparison: Comparison) -> list[aggregate.Row]:
    return aggregate.over_seeds(comparison.runs, comparison.baseline) if comparison.is_sweep else []


def _figure(figure: Figure, rendered: Sequence[RenderedPanel]) -> Section:
    cards = itertools.groupby(figure.cards, lambda card: card.group)
    content = {
        "figure": figure,
        "cards": [(group, list(members)) for group, members in cards],
        "panels": _grouped(list(zip(figure.panels, rendered, strict=True))),
    }
    files = ("svg", "png", "csv")
    return Section(figure.name, figure.kind, figure.title, "figure", content, figure.caption, files)


def _grouped(panels: list[PagePanel]) -> list[tuple[str, list[PagePanel]]]:
    """Group panels under the heading they share; panels that share none are one group without heading."""
    groups = [panel.group for panel, _ in panels]
    if len(set(groups)) == len(groups) or not any(groups):
        return [("", panels)]
    return [(group, list(members)) for group, members in itertools.groupby(panels, lambda p: p[0].group)]


def _missing(comparison: Comparison) -> Iterator[Section]:
    if entries := missing.unmeasured(comparison):
        title = "What was not measured"
        yield Section("missing", "Not measured", title, "missing", {"entries": entries})


def _runs(comparison: Comparison) -> Section:
    runs = [*comparison.runs]
    if comparison.baseline and not any(run is comparison.baseline for run in runs):
        runs.append(comparison.baseline)
    content = {
        "runs": [(run, _environment(run), json.dumps(run.config, indent=2, sort_keys=True)) for run in runs]
    }
    count = formatting.plural(len(comparison.runs), "run")
    title = f"From the result files of {count}, without loading a model"
    return Section("made", "How this page was made", title, "runs", content)


def _environment(run: Run) -> str:
    """Format versions, devices and commit of the training as one line."""
    parts = []
    for key, value in sorted(run.environment.items()):
        if isinstance(value, dict):
            parts.append(", ".join(f"{name} {version}" for name, version in sorted(value.items())))
        elif value:
            items = dict.fromkeys(map(str, value)) if isinstance(value, list) else [value]
            parts.append(f"{key} {', '.join(map(str, items))}")
    return "; ".join(parts) or f"no {run_directory.ENVIRONMENT}"


def _write_files(comparison: Comparison, figures: Sequence[RenderedFigure], folder: Path) -> None:
    """Write figures and tables; remove those of an earlier report that this one does not have."""
    folder.mkdir(exist_ok=True)
    rows, swept = summary.rows(comparison), _swept(comparison)
    tables = {
        "summary.csv": summary.to_csv(rows) if rows else None,
        "sweep.csv": aggregate.to_csv(swept) if swept else None,
        "sweep.md": aggregate.to_markdown(swept) if swept else None,
    }
    names = {figure.name for figure, _ in figures}
    absent = [make.__name__ for make in FIGURES if make.__name__ not in names]
    for name in (*tables, *(f"{figure}.{suffix}" for figure in absent for suffix in ("svg", "png", "csv"))):
        (folder / name).unlink(missing_ok=True)
    for name, text in tables.items():
        if text is not None:
            (folder / name).write_text(text)
    for figure, rendered in figures:
        rendering.save(figure, rendered, folder)
