"""`--smoke` with every recipe and variant: it trains, saves, loads and predicts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from byov_jax import recipes
from byov_jax.cli import train
from byov_jax.recipes import variants

CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"
VARIANTS = (*variants.METHODS, *(f"byov-{name}" for name in (*variants.PRIORS[1:], *variants.WHERE[1:])))
CASES = ("quickstart", "fashion_mnist", "cifar10", "folder", "imagenet")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The data flags of each recipe: none, an array file, a folder of images."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for name in "abc":
            (root / "photos" / split / name).mkdir(parents=True)
            for i in range(count):
                array = rng.integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(array).save(root / "photos" / split / name / f"{i}.png")
    gray = {f"{split}_image": rng.integers(0, 256, (32, 28, 28, 1), np.uint8) for split in ("train", "test")}
    labels = {f"{split}_label": np.arange(32) % 3 for split in ("train", "test")}
    np.savez(root / "gray.npz", **gray, **labels)
    photos = f"--config.data.source={root / 'photos'}"
    return {
        "quickstart": [],
        "fashion_mnist": [f"--config.data.source={root / 'gray.npz'}"],
        "cifar10": [photos],
        "folder": [photos],
        "imagenet": [photos, "--config.views.size=32"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "name"),
    [(config, name) for config in CASES for name in VARIANTS]
    + [("imagenet", name) for name in ("vit_s16", "vit_ti16", "resnet50", "resnet50-byol-1000")],
)
def test_smoke(config, name, sources, capsys, one_device):
    assert train.main([f"--config={CONFIGS / config}.py:{name}", "--smoke", *sources[config]]) == 0
    assert "trains, saves, loads and predicts" in capsys.readouterr().out


def test_every_recipe_is_tried(sources):
    files = {file.stem for file in CONFIGS.glob("*.py")} - {"__init__"}
    assert files == set(sources) == set(CASES) == set(recipes.NAMES)
