"""The page: one HTML file with everything in it, and the figures beside it as files."""

import base64
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from byov_jax.errors import RunError
from byov_jax.files import write_text
from byov_jax.report import comparison, files, formatting, groups, missing, render, summary, tables
from byov_jax.report.comparison import Comparison
from byov_jax.report.draw import Card, Figure, Style
from byov_jax.report.figures import FIGURES
from byov_jax.report.render import Drawing
from byov_jax.report.runs import Run
from byov_jax.training import run_directory

STYLE_SHEET = Path(__file__).with_name("page.css")
Drawn = tuple[Figure, list[Drawing]]
Section = tuple[str, str, str, str]
"""Anchor, kind, title, and the HTML of the rest."""

MOST_ROWS = 8
"""Runs that the summary shows without a click."""

DASHES = {"-": "", "--": "6 3", "-.": "6 2 1.5 2", ":": "1.5 2.5"}
MARKS = {
    "o": '<circle cx="17" cy="6" r="3.2"/>',
    "s": '<path d="M14 3h6v6h-6z"/>',
    "^": '<path d="M17 2l3.8 7h-7.6z"/>',
    "v": '<path d="M17 10l3.8-7h-7.6z"/>',
    "D": '<path d="M17 2l4 4-4 4-4-4z"/>',
}


def write(runs: Sequence[Path], out: Path, baseline: Path | None = None) -> Path:
    """Reads the runs, draws, and writes the page and its figures; see `byov_jax.report.write`."""
    if out.is_dir():
        raise RunError(f"{out} is a directory: name a file, {out / 'report.html'} for instance")
    if blocking := next((parent for parent in out.parents if parent.is_file()), None):
        raise RunError(f"{out} cannot be written: {blocking} is a file, not a directory")
    found = comparison.read(runs, baseline)
    drawable = [figure for make in FIGURES if (figure := make(found))]
    figures = [(figure, render.drawings(figure)) for figure in drawable]
    folder = out.with_name(f"{out.stem}_figures")
    text = page(found, figures, folder.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    _write_figures(found, figures, folder)
    write_text(out, text)
    return out


def page(found: Comparison, figures: Sequence[Drawn], folder: str) -> str:
    """The whole page; `folder` is where its figures lie as files, relative to it."""
    sections = [*_tables(found, folder), *(_figure(*drawn, folder) for drawn in figures)]
    sections += [*_missing(found), _made(found)]
    heading = _heading(found)
    contents = "".join(
        f'<li><a href="#{name}"><b>{escape(kind)}</b> {escape(title)}</a></li>'
        for name, kind, title, _ in sections
    )
    body = "".join(
        f'<section id="{name}"><p class="kind">{escape(kind)}</p><h2>{escape(title)}</h2>{content}</section>'
        for name, kind, title, content in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading)}</title>\n<style>\n{STYLE_SHEET.read_text()}</style>\n</head>\n<body>\n"
        f'<header><p class="kind">Bootstrap Your Own Variance</p><h1>{escape(heading)}</h1>'
        f'<p class="lead">{escape(_lead(found))}</p></header>\n'
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>\n<main>\n{body}\n</main>\n</body>\n</html>\n'
    )


def _heading(found: Comparison) -> str:
    methods = formatting.listing(list(dict.fromkeys(run.name.split(" · ")[0] for run in found.runs)))
    sources = formatting.listing(
        list(dict.fromkeys(Path(run.config["data"]["source"]).stem for run in found.runs))
    )
    return f"{methods} on {sources}"


def _lead(found: Comparison) -> str:
    count = len(found.runs)
    said = [f"{count} run{'s' if count > 1 else ''}."]
    if found.baseline:
        said.append(f"Differences are to {found.baseline.name}.")
    if count > len(found.featured):
        said.append(
            f"Tables and training curves have all of them; the other figures show {len(found.featured)}, "
            f"the lowest seed of each of {'the first ' if len(found.settings) > len(found.featured) else ''}"
            f"{len(found.featured)} settings."
        )
    return " ".join(said)


def _tables(found: Comparison, folder: str) -> Iterator[Section]:
    rows = summary.rows(found)
    if rows:
        table = tables.summary_table(rows)
        if len(found.runs) > MOST_ROWS:
            table = f"<details><summary>The table of all {len(found.runs)} runs</summary>{table}</details>"
        content = table + _caption(summary.caption(found)) + _files(folder, "summary", ("csv",))
        yield "summary", "Summary", summary.title(found, rows), content
    swept = groups.groups(found.runs, found.baseline) if found.is_sweep else []
    if swept:
        content = tables.sweep_tables(swept) + _caption(tables.sweep_caption(swept))
        yield (
            "sweep",
            "Sweep",
            tables.sweep_title(swept),
            content + _files(folder, "sweep", ("csv", "md")),
        )


def _figure(figure: Figure, drawings: Sequence[Drawing], folder: str) -> Section:
    if figure.cards:
        shown = "".join(
            f'<h3>{escape(group)}</h3><div class="cards">{"".join(map(_card, cards))}</div>'
            for group, cards in itertools.groupby(figure.cards, key=lambda card: card.group)
        )
    else:
        shown = _panels(figure, drawings)
    content = _legend(figure.legend) + shown + _caption(figure.caption)
    return (
        figure.name,
        figure.kind,
        figure.title,
        content + _files(folder, figure.name, ("svg", "png", "csv")),
    )


def _panels(figure: Figure, drawings: Sequence[Drawing]) -> str:
    """The panels, group by group under its name; groups of one stand side by side."""
    names = [panel.group for panel in figure.panels]
    alone = len(set(names)) == len(names)
    if alone or not any(names):
        return _grid(figure, drawings, range(len(names)), captions=alone and any(names))
    return "".join(
        f"<h3>{escape(group)}</h3>{_grid(figure, drawings, indices)}"
        for group, indices in itertools.groupby(range(len(names)), key=names.__getitem__)
    )


def _grid(figure: Figure, drawings: Sequence[Drawing], indices: Iterable[int], captions: bool = False) -> str:
    panels = []
    for index in indices:
        panel = figure.panels[index]
        label = escape(": ".join(filter(None, (figure.kind, panel.group, panel.title))))
        caption = f"<figcaption>{escape(panel.group)}</figcaption>" if captions else ""
        drawing = f'<div role="img" aria-label="{label}">{drawings[index].svg}</div>'
        panels.append(f'<figure class="panel">{caption}{drawing}</figure>')
    return f'<div class="panels by-{figure.columns}">{"".join(panels)}</div>'


def _card(card: Card) -> str:
    picture = base64.b64encode(card.picture).decode()
    label = escape(", ".join(filter(None, card.words)))
    lines = "".join(f"<span>{escape(line)}</span>" for line in card.words if line)
    return (
        f'<figure class="card {"right" if card.good else "wrong"}">'
        f'<img src="data:image/png;base64,{picture}" alt="{label}"><figcaption>{lines}</figcaption></figure>'
    )


def _legend(legend: Sequence[tuple[str, Style]]) -> str:
    if not legend:
        return ""
    items = "".join(
        f'<li><svg class="key" viewBox="0 0 34 12" aria-hidden="true" fill="{look.colour}">'
        f'<path d="M0 6h34" stroke="{look.colour}" stroke-width="2" stroke-dasharray="{DASHES[look.line]}"/>'
        f"{MARKS.get(look.marker, '')}</svg>{escape(label)}</li>"
        for label, look in legend
    )
    return f'<ul class="legend">{items}</ul>'


def _caption(sentences: Sequence[str]) -> str:
    return f'<p class="caption">{escape(" ".join(sentences))}</p>'


def _files(folder: str, name: str, kinds: Sequence[str]) -> str:
    links = " ".join(f'<a href="{escape(folder)}/{name}.{kind}">{kind.upper()}</a>' for kind in kinds)
    return f'<p class="files">{links}</p>'


def _missing(found: Comparison) -> Iterator[Section]:
    absent = missing.missing(found)
    if absent:
        items = "".join(
            f"<li>Not measured: {escape(entry.what)}; {escape(entry.how)}"
            + (f" <code>{escape(entry.command)}</code>" if entry.command else "")
            + "</li>"
            for entry in absent
        )
        yield "missing", "Not measured", "What this page could not show", f'<ul class="missing">{items}</ul>'


def _made(found: Comparison) -> Section:
    runs = [*found.runs]
    if found.baseline and not any(run is found.baseline for run in runs):
        runs.append(found.baseline)
    items = "".join(
        f"<details><summary><b>{escape(run.name)}</b> {escape(str(run.path))}</summary>"
        f"<p>{escape(_environment(run))}</p>"
        f"<pre>{escape(json.dumps(run.config, indent=2, sort_keys=True))}</pre></details>"
        for run in runs
    )
    count = len(found.runs)
    title = f"From the result files of {count} run{'s' if count > 1 else ''}, without loading a model"
    return "made", "How this page was made", title, items


def _environment(run: Run) -> str:
    """Versions, devices and commit of the training, in a line."""
    said = []
    for key, value in sorted(run.environment.items()):
        if isinstance(value, dict):
            said.append(", ".join(f"{name} {version}" for name, version in sorted(value.items())))
        elif value:
            listed = dict.fromkeys(map(str, value)) if isinstance(value, list) else [value]
            said.append(f"{key} {', '.join(map(str, listed))}")
    return "; ".join(said) or f"no {run_directory.ENVIRONMENT}"


def _write_figures(found: Comparison, figures: Sequence[Drawn], folder: Path) -> None:
    """Figures and tables as files; those of an earlier report that this one has not are removed."""
    folder.mkdir(exist_ok=True)
    rows = summary.rows(found)
    swept = groups.groups(found.runs, found.baseline) if found.is_sweep else []
    texts = {"summary.csv": groups.table(summary.flat(rows)) if rows else ""}
    texts |= {"sweep.csv": groups.comma_separated(swept) if swept else ""}
    texts |= {"sweep.md": groups.markdown(swept) if swept else ""}
    drawn = {figure.name for figure, _ in figures}
    stale = [f"{draw.__name__}.{kind}" for draw in FIGURES for kind in ("svg", "png", "csv")]
    for name in (*(name for name in stale if name.split(".")[0] not in drawn), *texts):
        (folder / name).unlink(missing_ok=True)
    for name, text in texts.items():
        if text:
            (folder / name).write_text(text)
    for figure, drawings in figures:
        files.save(figure, drawings, folder)
