"""The page: complete in one file, escaped, the same bytes for the same results, nothing half written."""

import collections
import csv
import html.parser
import io
import re
import shutil
import xml.etree.ElementTree as ElementTree

import pytest
from report.synthetic import write_run

from byov_jax import files, report
from byov_jax.errors import RunError
from byov_jax.report import comparison, missing, page
from byov_jax.report.figures import FIGURES

SECTIONS = ["summary", *(figure.__name__ for figure in FIGURES), "made"]
NASTY = '<script>alert(1)</script> & "$x_1$" \''


class Elements(html.parser.HTMLParser):
    """Tags with their attributes, and the text, as a browser understands them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for method in ("byov", "byol"):
        write_run(root / method, method)
    return root


@pytest.fixture(scope="module")
def out(root):
    return report.write([root], root / "out" / "report.html")


@pytest.fixture(scope="module")
def elements(out):
    return Elements(out.read_text())


def test_every_section_is_there_in_order(elements):
    sections = [attributes["id"] for tag, attributes in elements.tags if tag == "section"]
    assert sections == SECTIONS


def test_the_page_needs_no_other_file_and_no_network(elements):
    for tag, attributes in elements.tags:
        assert tag not in ("script", "link", "iframe", "object")
        if tag == "img":
            assert attributes["src"].startswith("data:image/png;base64,")
        if tag == "image":
            assert attributes["xlink:href"].startswith("data:image/png;base64,")
    assert not re.search(r"url\((?!#)|@import|https?://", " ".join(str(a) for _, a in elements.tags))


def test_no_id_is_used_twice_and_every_reference_has_its_target(out, elements):
    counts = collections.Counter(elements.ids())
    assert max(counts.values()) == 1
    text = out.read_text()
    references = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert len(references) > 100
    assert set(references) <= set(counts)


def test_every_figure_and_image_has_a_text_alternative(elements):
    labels = [a["aria-label"] for _, a in elements.tags if a.get("role") == "img"]
    drawings = [a for tag, a in elements.tags if tag == "svg" and a.get("class") != "key"]
    assert len(labels) == len(drawings) > 20
    assert all(labels)
    assert all(a["alt"] for tag, a in elements.tags if tag == "img")


def test_figures_are_written_beside_the_page(out):
    folder = out.with_name("report_figures")
    expected = {f"{figure.__name__}.{kind}" for figure in FIGURES for kind in ("svg", "png", "csv")}
    assert {file.name for file in folder.iterdir()} == expected | {"summary.csv"}
    for file in folder.glob("*.svg"):
        ElementTree.parse(file)
    for file in folder.glob("*.png"):
        assert file.read_bytes().startswith(b"\x89PNG")
    for file in folder.glob("*.csv"):
        assert len(list(csv.DictReader(io.StringIO(file.read_text())))) > 1
    links = re.findall(r'<a href="(report_figures/[^"]+)"', out.read_text())
    assert {out.parent / link for link in links} == set(folder.iterdir())


def test_the_page_is_small(out):
    assert out.stat().st_size < 5e6


def test_the_same_results_give_the_same_bytes(tmp_path, root, out):
    again = report.write([root / "byol", root / "byov"], tmp_path / "report.html")
    assert again.read_bytes() == out.read_bytes()
    for file in out.with_name("report_figures").iterdir():
        assert (tmp_path / "report_figures" / file.name).read_bytes() == file.read_bytes(), file.name


def test_text_of_files_is_never_markup(tmp_path):
    run = write_run(
        tmp_path / "<b>run</b>", where=NASTY, prior="standard", parts=["calibration", "latent"], curves=False
    )
    other = write_run(tmp_path / "other", beta_end=1.0, parts=["latent"], curves=False)
    (run / "environment.json").write_text('{"devices": ["<b>gpu</b>"], "packages": {"<i>": "</i>"}}')
    found = Elements(report.write([run, other], tmp_path / "page.html").read_text())
    assert not {"script", "i"} & {tag for tag, _ in found.tags}
    assert NASTY in found.text
    assert "<b>owl</b>" in found.text
    assert "<b>gpu</b>" in found.text


def test_what_is_missing_is_listed_with_its_command(tmp_path):
    run = write_run(tmp_path / "my run", parts=["probe", "calibration", "shift"], curves=False)
    text = Elements(report.write([run], tmp_path / "page.html").read_text()).text
    evaluate = f"byov evaluate --run='{run}'"
    assert "Not measured: pruning, convergence, latent of BYOV" in text
    assert f"{evaluate} --only=pruning,convergence,latent" in text
    assert f"{evaluate} --supervised=RUN --only=alignment" in text
    assert "Not measured: training curves of BYOV" in text
    assert "Not measured: differences to a baseline" in text


def test_nothing_is_listed_where_nothing_is_missing(root):
    assert missing.unmeasured(comparison.read_runs([root])) == []


def test_an_evaluation_from_before_images_were_kept_lists_them(tmp_path):
    run = write_run(tmp_path / "byol", "byol")
    kept = comparison.read_runs([run]).runs[0].arrays("calibration", "mean/", "mc/", "label")
    files.write_npz(run / "evaluation/calibration.npz", kept)
    (entry,) = missing.unmeasured(comparison.read_runs([run]))
    assert entry.what == "most and least certain images of BYOL"
    assert entry.how.endswith(f"remove {run}/evaluation/calibration.json and run")
    assert entry.command.endswith("--only=calibration")


def test_a_baseline_on_other_data_is_said_to_be(tmp_path):
    write_run(tmp_path / "byov")
    other = write_run(tmp_path / "byol", "byol")
    file = other / "evaluation.json"
    file.write_text(file.read_text().replace('"data": "0123"', '"data": "4567"'))
    listed = [entry.what for entry in missing.unmeasured(comparison.read_runs([tmp_path]))]
    assert listed == [f"differences of BYOV to BYOL: {part}" for part in ("calibration", "shift")]


def test_a_sweep_has_its_table(tmp_path):
    for seed in (0, 1):
        for method in ("byov", "byol"):
            write_run(tmp_path / f"{method}_{seed}", method, seed=seed, parts=["calibration"], curves=False)
    found = comparison.read_runs([tmp_path])
    text = page.page(found, [], "figures")
    assert '<section id="sweep">' in text
    assert "Mean over 2 seeds" in text
    assert '<section id="sweep">' not in page.page(comparison.read_runs([tmp_path / "byov_0"]), [], "figures")


def test_the_baseline_may_be_any_run(tmp_path, root):
    shutil.copytree(root / "byol", tmp_path / "first")
    found = comparison.read_runs([root / "byov", root / "byol"], tmp_path / "first")
    assert found.baseline.path == tmp_path / "first"
    assert len(found.runs) == 2
    assert comparison.read_runs([root / "byov", root / "byol"]).baseline.path == root / "byol"
    assert comparison.read_runs([root / "byov"]).baseline is None


def test_an_earlier_report_leaves_no_stale_figures(tmp_path):
    folder = tmp_path / "page_figures"
    folder.mkdir()
    for name in ("pruning.svg", "sweep.md", "notes.txt"):
        (folder / name).write_text("old")
    report.write([write_run(tmp_path / "byov", parts=["latent"], curves=False)], tmp_path / "page.html")
    found = {file.name for file in folder.iterdir()}
    assert {"latent.svg", "notes.txt"} <= found
    assert not {"pruning.svg", "sweep.md"} & found


@pytest.mark.parametrize("damaged", ["evaluation.json", "evaluation/latent.npz", "posterior.jsonl"])
def test_damage_is_one_line_and_nothing_is_written(tmp_path, damaged):
    run = write_run(tmp_path / "byov", parts=["convergence", "latent"])
    for name in (damaged, damaged.replace("latent", "convergence")):
        (run / name).write_text("damaged\n")
    with pytest.raises(RunError) as error:
        report.write([run], tmp_path / "out" / "page.html")
    assert str(run) in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_directory_is_no_page(tmp_path):
    with pytest.raises(RunError, match="is a directory: name a file"):
        report.write([write_run(tmp_path / "byov")], tmp_path)
