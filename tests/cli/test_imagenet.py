"""`byov imagenet`: its variants, and a run on images that are decoded while training."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from byov_jax.cli import evaluate, flags, grid, imagenet, report
from byov_jax.recipes import imagenet as configs
from byov_jax.training import build

FILE = Path(__file__).parents[2] / "experiments" / "configs" / "imagenet.py"


def test_the_default_is_byov_on_vit_b16():
    config = flags.load_config(f"{FILE}:vit_b16")
    assert config == flags.load_config(str(FILE))
    assert (config.method, config.prior, config.where) == ("byov", "standard", "all")
    assert (config.beta_start, config.beta_end) == (0.0, 0.3)
    assert config.encoder.size == "B/16"
    assert (config.batch_size, config.steps) == (4096, 93_835)  # 300 epochs of 312.785 steps
    assert config.optimizer.learning_rate == pytest.approx(2.4e-3)
    assert config.optimizer.warmup == 12_511
    assert config.optimizer.weight_decay == 0.0
    assert config.tau == pytest.approx(0.99)
    config.check_data(devices=256)


@pytest.mark.parametrize(
    ("epochs", "rate", "decay", "tau"),
    [(100, 0.45, 1e-6, 0.99), (300, 0.3, 1e-6, 0.99), (1000, 0.2, 1.5e-6, 0.996)],
)
def test_the_published_presets_of_byol(epochs, rate, decay, tau):
    config = flags.load_config(f"{FILE}:resnet50-byol-{epochs}")
    optimizer = config.optimizer
    assert optimizer.name == "lars"
    assert optimizer.lr_after_momentum
    assert optimizer.learning_rate == pytest.approx(16 * rate)
    assert (optimizer.weight_decay, config.tau) == (decay, pytest.approx(tau))
    assert optimizer.warmup == 3128
    assert config.steps == round(epochs * 1_281_167 / 4096)
    config.check_data(devices=64)


def test_a_smaller_batch_sees_the_same_images_with_scaled_rates():
    config = flags.load_config(f"{FILE}:vit_s16-byol-100-batch256")
    assert config.steps == round(100 * 1_281_167 / 256)
    assert config.optimizer.learning_rate == pytest.approx(1.5e-4)
    assert config.optimizer.weight_decay == 0.1
    assert config.tau == pytest.approx(0.99937205)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("vit_h14", "'vit_h14' is none of vit_b16, vit_s16"),
        ("vit_b16-vit_s16", "names both 'vit_b16' and 'vit_s16'"),
        ("byol-teacher_mean", "byol has neither prior nor posterior"),
        ("vit_b16-200", "'200' is none of"),
    ],
)
def test_a_variant_that_does_not_exist(variant, message, capsys, tmp_path):
    assert imagenet.main([f"--config={FILE}:{variant}", f"--workdir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("imagenet: --config=")
    assert message in error
    assert not (tmp_path / "run").exists()


def test_every_network_is_what_its_name_says():
    for name, width in (("vit_b16", 768), ("vit_s16", 384), ("vit_ti16", 192)):
        network = build.network(flags.load_config(f"{FILE}:{name}"))
        assert (network.encoder.width, network.encoder.patch, network.encoder.depth) == (width, 16, 12)
        assert network.encoder.dtype == network.projector.dtype == "bfloat16"


def test_the_paper_s_grids_have_a_baseline_of_the_same_network():
    for name, runs in (("paper", 3 * 3 + 1), ("partial", 3 * 2 * 2 + 1)):
        axes = grid.GRIDS[name]
        chosen = grid.Axes(axes["prior"].split(","), grid.betas(axes["beta"]), axes["where"].split(","))
        points = grid.points(f"{FILE}:vit_s16-100", [], chosen, baseline=True)
        assert len(points) == runs
        assert {point.config.encoder.size for point in points} == {"S/16"}
        assert [point.config.method for point in points].count("byol") == 1
        assert {point.config.steps for point in points} == {31_278}
    assert configs.baseline("resnet50-byov-no_conv-1000") == "resnet50-byol-1000-batch4096"


def test_what_is_streamed_can_be_measured(tmp_path, one_device, capsys):
    """A run on images that are decoded as they are needed: trained, measured, reported."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 5)):
        for name in "abc":
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (24, 20 + i, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{i}.jpg")
    bad = tmp_path / "data/val/b/3.jpg"
    bad.write_bytes(b"")
    run = tmp_path / "run"
    changes = {
        "data.source": tmp_path / "data",
        "data.workers": 0,
        "views.size": 16,
        "encoder.width": 16,
        "encoder.heads": 2,
        "encoder.depth": 1,
        "projector.widths": "16,16",
        "predictor.widths": "16,16",
        "batch_size": 8,
        "steps": 2,
        "optimizer.warmup": 1,
        "dtype": "float32",
    }
    argv = [f"--config={FILE}:vit_ti16", f"--workdir={run}"]
    argv += [f"--config.{key}={value}" for key, value in changes.items()]
    assert imagenet.main(argv) == 0
    assert f"{bad} cannot be read as an image (it is empty): it is replaced" in capsys.readouterr().err
    assert evaluate.main([f"--run={run}", "--only=probe,calibration,pruning,latent"]) == 0
    assert capsys.readouterr().out.count(f"{bad} cannot be read") == 1
    assert report.main([str(run), f"--out={tmp_path / 'report.html'}"]) == 0
    numbers = json.loads((run / "evaluation.json").read_text())["parts"]
    assert numbers["calibration"]["images"] == 15
    assert "raw pixels" in numbers["probe"]["accuracy"]  # 16x16 pixels are few enough
    assert (tmp_path / "report.html").stat().st_size > 10_000
