"""Figures: drawn exactly when their numbers exist, titled by what the numbers say."""

import json

import numpy as np
import pytest
from report.synthetic import KERNELS, write_lines, write_run

from byov_jax.errors import RunError
from byov_jax.report import comparison
from byov_jax.report.figures import FIGURES
from byov_jax.report.figures.alignment import levels
from byov_jax.report.figures.layers import depth
from byov_jax.report.figures.pruning import pruning
from byov_jax.report.figures.training import MAX_POINTS, series, training
from byov_jax.training import run_directory

PART_OF = {
    "reliability": "calibration",
    "shift": "shift",
    "pruning": "pruning",
    "convergence": "convergence",
    "latent": "latent",
    "alignment": "alignment",
    "examples": "calibration",
}
ALL = ["probe", "calibration", "shift", "pruning", "convergence", "latent", "alignment"]


def drawn(place):
    found = comparison.read_runs([place])
    return {figure.name: figure for make in FIGURES if (figure := make(found))}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for method in ("byov", "byol", "supervised_bbb"):
        write_run(root / method, method)
    return root


def edit(run, change):
    """Changes the numbers of an evaluation."""
    file = run / run_directory.EVALUATION
    evaluation = json.loads(file.read_text())
    change(evaluation["parts"])
    file.write_text(json.dumps(evaluation))


def test_everything_is_drawn_where_everything_was_measured(root):
    found = drawn(root)
    assert list(found) == [make.__name__ for make in FIGURES]
    for figure in found.values():
        assert figure.title
        assert figure.caption
        assert figure.rows
        assert figure.panels


@pytest.mark.parametrize("absent", sorted(set(PART_OF.values())))
def test_what_was_not_measured_is_not_drawn_and_all_else_is(tmp_path, absent):
    write_run(tmp_path / "byov", parts=[part for part in ALL if part != absent])
    write_run(tmp_path / "byol", "byol")
    expected = [make.__name__ for make in FIGURES if PART_OF.get(make.__name__) != absent]
    assert list(drawn(tmp_path)) == expected


def test_a_run_alone_has_no_differences_to_a_baseline(tmp_path):
    assert "shift" not in drawn(write_run(tmp_path / "byov"))


def test_a_deterministic_run_has_no_figures_of_a_posterior(tmp_path):
    assert list(drawn(write_run(tmp_path / "byol", "byol"))) == [
        "training",
        "reliability",
        "pruning",
        "examples",
    ]


def test_a_run_without_results_has_no_figures(tmp_path):
    assert drawn(write_run(tmp_path / "byov", parts=[], curves=False)) == {}


def test_titles_say_what_the_numbers_say(root):
    found = drawn(root)
    assert found["training"].title == "BYOV: the online probe went from 65.0% to 80.0%"
    accuracies = "57% by SNR, 40% by magnitude and 20% at random"
    assert found["pruning"].title == f"BYOV with half its weights: accuracy {accuracies} (with all, 80%)"
    assert found["convergence"].title == "BYOV: 17 draws are enough for a predictive mean within 1 point"
    assert found["alignment"].title.endswith("rank correlation 0.50 [0.40, 0.60]")
    assert "right about" in found["examples"].title


def test_a_caption_admits_what_the_paper_did_not_see(tmp_path):
    run = write_run(tmp_path / "byov")
    assert "points ahead." in pruning(comparison.read_runs([run])).caption[-1]

    def swap(parts):
        numbers = parts["pruning"]
        numbers["snr"], numbers["magnitude"] = numbers["magnitude"], numbers["snr"]

    edit(run, swap)
    assert pruning(comparison.read_runs([run])).caption[-1].endswith("points behind: unlike in the paper.")


def test_an_undefined_correlation_is_no_claim(tmp_path):
    run = write_run(tmp_path / "byov")
    undefined = {"value": None, "low": None, "high": None}
    edit(run, lambda parts: parts["alignment"].update(spearman=undefined))
    assert drawn(run)["alignment"].title.startswith("No evidence that the uncertainty of BYOV")


@pytest.mark.parametrize("part", ["calibration", "shift", "pruning", "latent", "alignment", "convergence"])
def test_numbers_of_another_form_are_one_line_that_names_the_run(tmp_path, part):
    write_run(tmp_path / "byol", "byol")
    run = write_run(tmp_path / "byov")
    edit(run, lambda parts: parts.update({part: {"images": 60, "mean": 4, "magnitude": [[]], "encoder": 1}}))
    with pytest.raises(RunError) as error:
        drawn(tmp_path)
    assert str(error.value).startswith(f"{run}: ")
    assert "\n" not in str(error.value)


def test_long_curves_are_averaged_and_gaps_left_out(tmp_path):
    run = write_run(tmp_path / "byov", parts=[])
    lines = [{"step": i, "loss": float(i), "kl": None if i % 2 else 1.0} for i in range(4 * MAX_POINTS)]
    write_lines(run / run_directory.METRICS, lines)
    (found,) = comparison.read_runs([run]).runs
    x, y = series(found, "step", "loss")
    np.testing.assert_allclose(x, np.arange(4 * MAX_POINTS).reshape(-1, 4).mean(axis=1))
    np.testing.assert_allclose(x, y)
    assert len(series(found, "step", "kl")[0]) == MAX_POINTS
    assert len(series(found, "step", "probe")[0]) == 0


def test_supervised_losses_have_a_panel_of_their_own(root):
    panels = [panel.title for panel in training(comparison.read_runs([root])).panels]
    assert panels[:2] == ["Loss without labels", "Loss with labels"]
    alone = [panel.title for panel in training(comparison.read_runs([root / "byol"])).panels]
    assert "Loss with labels" not in alone
    assert "KL to the prior" not in alone


def test_layers_are_sorted_from_input_to_output():
    assert sorted(KERNELS, key=depth) == [
        "encoder/patch_embedding/kernel",
        "encoder/blocks_0/attention/qkv/kernel",
        "encoder/blocks_0/attention/out/kernel",
        "encoder/blocks_1/mlp/up/kernel",
        "projector/dense_0/kernel",
        "predictor/dense_0/kernel",
    ]
    scanned = [f"encoder/blocks/{i}/mlp/{name}/kernel" for i in (2, 10) for name in ("up", "down")]
    assert sorted(set(scanned), key=depth) == scanned
    residual = [
        "encoder/conv_stem/kernel",
        "encoder/stage1_block0/conv0/kernel",
        "encoder/stage2_block0/conv0/kernel",
    ]
    assert sorted(set(residual), key=depth) == residual


def test_only_kernels_are_shown_of_a_posterior(root):
    layers = {row["layer"] for row in drawn(root)["layers"].rows}
    assert layers == set(KERNELS)


def test_contours_hold_the_mass_they_say():
    x = np.linspace(-4, 4, 161)
    density = np.exp(-0.5 * (x[:, None] ** 2 + x[None] ** 2))
    for mass, level in zip((0.9, 0.5), levels(density, (0.5, 0.9)), strict=True):
        # Outside radius r lies exp(-r^2 / 2) of a Gaussian in the plane, which is also the level there.
        assert level == pytest.approx(1 - mass, abs=0.01)
