"""`byov report`: the page, its help, and wrong inputs."""

import pytest
from report.synthetic import write_run

from byov_jax.cli import report


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "runs" / "byov", parts=["probe", "calibration", "latent"], curves=False)


def lines_of(capsys):
    return capsys.readouterr().err.strip().splitlines()


def test_the_page_is_written_and_its_path_printed(run, tmp_path, capsys):
    out = tmp_path / "new" / "report.html"
    assert report.main([str(run), f"--out={out}"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_text().startswith("<!doctype html>")
    assert (tmp_path / "new" / "report_figures" / "latent.csv").is_file()


def test_a_folder_of_runs_and_a_baseline(run, tmp_path, capsys):
    baseline = write_run(tmp_path / "elsewhere" / "byol", "byol", parts=["calibration"], curves=False)
    out = tmp_path / "report.html"
    assert report.main([str(run.parent), f"--baseline={baseline}", f"--out={out}"]) == 0
    assert "Differences are to BYOL." in out.read_text()


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stopped:
        report.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for word in ("RUN [RUN ...]", "--baseline", "byov evaluate", "report_figures/"):
        assert word in text


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda run: (run / "config.json").unlink(), "neither a run directory nor a folder of them"),
        (lambda run: (run / "config.json").write_text('{"colour": 1}'), "config has no key colour"),
        (lambda run: (run / "evaluation.json").write_text("{"), "evaluation.json cannot be read"),
        (lambda run: (run / "evaluation/calibration.npz").write_text("{"), "calibration.npz cannot be read"),
        (
            lambda run: (run / "metrics.jsonl").write_text("1\n"),
            "metrics.jsonl line 1 must be one JSON object",
        ),
    ],
)
def test_a_broken_run_is_one_clear_line_and_nothing_is_written(run, tmp_path, capsys, break_it, message):
    break_it(run)
    assert report.main([str(run), f"--out={tmp_path / 'out' / 'report.html'}"]) == 2
    (line,) = lines_of(capsys)
    assert line.startswith(f"report: {run}")
    assert message in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{root}/nowhere",), "nowhere is not a directory"),
        (("{root}/runs/byov", "--baseline={root}/nowhere"), "nowhere is not a directory"),
        (("{root}/runs/byov", "--out={root}"), "is a directory: name a file"),
        (
            ("{root}/runs/byov", "--out={root}/runs/byov/config.json/report.html"),
            "config.json is a file, not a directory",
        ),
    ],
)
def test_wrong_arguments_are_one_clear_line(run, tmp_path, capsys, arguments, message):
    assert report.main([argument.format(root=tmp_path) for argument in arguments]) == 2
    (line,) = lines_of(capsys)
    assert message in line


def test_no_run_at_all_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        report.main([])
    assert stopped.value.code == 2
    assert "RUN" in lines_of(capsys)[-1]
