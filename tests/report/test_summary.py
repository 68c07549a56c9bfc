"""The summary table: every run and mode, and bold only what stands out."""

import math

import pytest
from report.synthetic import write_run

from byov_jax.report import comparison, gains, page, summary
from byov_jax.report.gains import Interval


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for method in ("byov", "byol", "supervised_bbb"):
        write_run(root / method, method, curves=False)
    return comparison.read_runs([root])


def row(name, value, width):
    return summary.Row(name, "", {"ece": Interval(value, value - width, value + width)}, {})


def html(rows):
    return page.TEMPLATES.get_template("sections.html.jinja").module.summary(**page.summary_content(rows))


def test_rows_are_runs_and_modes_and_what_they_have_to_beat(found):
    assert [(row.name, row.weights) for row in summary.rows(found)] == [
        ("BYOL", "student"),
        ("BYOL", "teacher"),
        ("BYOV", "mean weights"),
        ("BYOV", "30 draws"),
        ("BYOV", "teacher"),
        ("supervised BBB", "mean weights"),
        ("supervised BBB", "30 draws"),
        ("raw pixels", ""),
        ("untrained network", ""),
    ]


def test_values_are_percentages_and_gains_are_to_the_baseline(found):
    run = next(run for run in found.runs if run.method == "byov")
    drawn = next(row for row in summary.rows(found) if (row.name, row.weights) == ("BYOV", "30 draws"))
    numbers = run.parts["calibration"]["mc"]
    assert drawn.values["ece"].value == pytest.approx(100 * numbers["ece"]["value"])
    assert drawn.values["nll"].low == pytest.approx(numbers["nll"]["low"])
    assert drawn.values["knn"].value == pytest.approx(
        100 * run.parts["probe"]["accuracy"]["student MC"]["kNN 20"]
    )
    assert math.isnan(drawn.values["knn"].low)
    assert drawn.gains["ece"] == pytest.approx(gains.clean(run, found.baseline, "mc", "ece"))
    nll = gains.clean(run, found.baseline, "mc", "nll")
    assert drawn.gains["nll"].value == pytest.approx(nll.value / 100)


def test_the_best_is_marked_only_if_its_interval_overlaps_no_other():
    clear = [row("a", 2.0, 0.5), row("b", 4.0, 1.0), row("c", 9.0, 1.0)]
    assert summary.best(clear, "ece") is clear[0]
    assert summary.best([row("a", 2.0, 1.5), *clear[1:]], "ece") is None
    assert summary.best(clear[:1], "ece") is None
    assert summary.best(clear, "knn") is None
    assert html(clear).count("<b>") == 1
    assert "<b>2.0</b>" in html(clear)


def test_a_missing_part_leaves_its_columns_empty(tmp_path):
    write_run(tmp_path / "byov", curves=False, parts=["probe"])
    rows = summary.rows(comparison.read_runs([tmp_path]))
    assert {column for row in rows for column in row.values} == {"top1", "knn"}
    assert "ECE" not in html(rows)
