"""Tables of the page as HTML: the summary, and prior by beta over seeds."""

import math
from collections.abc import Sequence
from html import escape

from byov_jax.report import formatting, groups, paper, summary
from byov_jax.report.gains import Interval
from byov_jax.report.groups import Estimate

SWEPT = ("top1", "ece", "reliability", "resolution")


def summary_table(rows: Sequence[summary.Row]) -> str:
    """One row per run and mode."""
    columns = [column for column in summary.COLUMNS if any(column in row.values for row in rows)]
    best = {column: summary.best(rows, column) for column in columns}
    head = "".join(f'<th scope="col">{escape(summary.COLUMNS[column])}</th>' for column in columns)
    lines, previous = [], None
    for row in rows:
        if row.weights and row.name != previous:
            lines.append(f'<tr class="first"><th scope="rowgroup">{escape(row.name)}</th></tr>')
        previous = row.name
        cells = "".join(_value(row, column, row is best[column]) for column in columns)
        start = (
            '<tr><th scope="row" class="weights">' if row.weights else '<tr class="first"><th scope="row">'
        )
        lines.append(f"{start}{escape(row.weights or row.name)}</th>{cells}</tr>")
    return _scrolling(f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>")


def _value(row: summary.Row, column: str, is_best: bool) -> str:
    if column not in row.values:
        return "<td></td>"
    digits = 3 if column == "nll" else 1
    value, low, high = (float(end) for end in row.values[column])
    text = formatting.fixed(value, digits) if math.isfinite(value) else "?"
    text = f"<b>{text}</b>" if is_best else text
    if math.isfinite(low):
        text += f" <small>{formatting.interval(low, high, digits)}</small>"
    if column in row.gains:
        text += f"<br>{_gain(row.gains[column], digits=3 if column == 'nll' else 2)}"
    return f'<td class="number">{text}</td>'


def _gain(gain: Interval, digits: int) -> str:
    value, low, high = (float(end) for end in gain)
    text = f"{formatting.signed(value, digits)} <small>{formatting.interval(low, high, digits)}</small>"
    return f'<span class="{_verdict(low, high)}">{text}</span>'


def _verdict(low: float, high: float) -> str:
    """Whether a difference is one: its interval does not contain 0."""
    return "better" if low > 0 else "worse" if high < 0 else "even"


def sweep_tables(rows: Sequence[groups.Row]) -> str:
    """For each metric a table of settings by beta: draws first, mean weights behind a click."""
    drawn = "".join(_pivot(rows, metric, "mc") for metric in SWEPT)
    mean = "".join(_pivot(rows, metric, "mean") for metric in SWEPT)
    if not any(row.mode == "mc" for row in rows):
        return f'<div class="pivots">{mean}</div>'
    return (
        f'<h3>Draws of the weights</h3><div class="pivots">{drawn}</div>'
        "<details><summary>The same with the mean weights</summary>"
        f'<div class="pivots">{mean}</div></details>'
    )


def _pivot(rows: Sequence[groups.Row], metric: str, mode: str) -> str:
    betas = list(dict.fromkeys(row.beta for row in rows if row.beta))
    chosen = [row for row in rows if row.mode == (mode if row.beta else "mean")]
    lines = []
    partial = len({row.where for row in rows if row.where}) > 1
    several = len({len(row.seeds) for row in rows}) > 1
    for key in dict.fromkeys((row.method, row.prior, row.where, row.other) for row in chosen):
        of = {row.beta: row for row in chosen if (row.method, row.prior, row.where, row.other) == key}
        method, prior, where, other = key
        name = escape(" · ".join(filter(None, (method, prior, where if partial else "", other))))
        if "" in of:  # no posterior, hence no beta
            cells = (
                f'<td class="number" colspan="{max(1, len(betas))}">{_estimate(of[""], metric, several)}</td>'
            )
        else:
            found = (_estimate(of[beta], metric, several) if beta in of else "" for beta in betas)
            cells = "".join(f'<td class="number">{cell}</td>' for cell in found)
        lines.append(f'<tr class="first"><th scope="row">{name}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">β {escape(beta)}</th>' for beta in betas) or "<th></th>"
    label = f"{groups.METRICS[metric]} (%)"
    body = f"<thead><tr><th>{escape(label)}</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return _scrolling(body)


def _estimate(row: groups.Row, metric: str, with_seeds: bool) -> str:
    found = row.metrics[metric]
    text = f"{formatting.fixed(found.mean, 2)}{_half_width(found)}"
    if with_seeds:
        text += f" <small>n = {found.seeds}</small>"
    gain = row.gains.get(metric)
    if gain is not None:
        width = math.inf if gain.half_width is None else gain.half_width
        verdict = _verdict(gain.mean - width, gain.mean + width)
        text += f'<br><span class="{verdict}">{formatting.signed(gain.mean)}{_half_width(gain)}</span>'
    return text


def _half_width(found: Estimate) -> str:
    return "" if found.half_width is None else f" <small>± {formatting.fixed(found.half_width, 2)}</small>"


def _scrolling(table: str) -> str:
    return f'<div class="scroll" tabindex="0"><table>{table}</table></div>'


def sweep_title(rows: Sequence[groups.Row]) -> str:
    """Which setting is calibrated best, by the ECE of its draws."""
    drawn = [row for row in rows if row.mode == "mc"] or list(rows)
    row = min(drawn, key=lambda row: row.metrics["ece"].mean)
    name = " · ".join(filter(None, (row.method, row.prior, f"β {row.beta}" if row.beta else "", row.other)))
    text = f"Lowest ECE among {len(drawn)} settings: {name}, {row.metrics['ece'].text()}%"
    gain = row.gains.get("ece")
    return f"{text}, {gain.text(signed=True)} points gained" if gain else text


def sweep_caption(rows: Sequence[groups.Row]) -> list[str]:
    """How the numbers were computed, and what the paper saw."""
    counts = sorted({len(row.seeds) for row in rows})
    seeds = f"{counts[0]} seed{'s' if counts[0] > 1 else ''}" if len(counts) == 1 else "n seeds"
    said = [
        f"Mean over {seeds} ± half-width of the 95% interval by Student's t; a single seed has none. "
        "Second lines: gain over the student of BYOL with the same seed, in percentage points, positive "
        "is better; blue where the interval is above 0, red where it is below.",
        paper.BEST,
    ]
    if len({row.where for row in rows if row.where}) > 1:
        said.append(paper.PARTIAL)
    return said
