"""The wheel, installed outside of the checkout, has all that the commands need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_BYTES = 6 * 2**20


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package from its wheel; its dependencies are those of this environment."""
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={place}", ROOT], check=True
    )
    (wheel,) = place.glob("byov_jax-*.whl")
    assert wheel.stat().st_size < MOST_BYTES
    subprocess.run([*pip, "install", "--no-deps", f"--target={place / 'site'}", wheel], check=True)
    return place / "site"


def byov(installed, folder, *arguments):
    """Runs the console script of the wheel in a folder; returns what it prints."""
    environment = os.environ | {"PYTHONPATH": str(installed), "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)  # it computes for longer than it compiles
    done = subprocess.run(
        [sys.executable, installed / "bin" / "byov", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_is_that_of_the_wheel(installed, tmp_path):
    code = "import byov_jax; print(byov_jax.__file__)"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(installed)


def test_every_file_of_the_package_is_in_the_wheel(installed):
    listed = subprocess.run(
        ["git", "ls-files", "byov_jax"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    missing = [name for name in listed.stdout.split() if not (installed / name).exists()]
    assert [name for name in missing if not name.endswith(".md") and (ROOT / name).exists()] == []


def test_help_lists_the_commands(installed, tmp_path):
    shown = byov(installed, tmp_path, "--help")
    for command in ("train", "evaluate", "report", "sweep", "plan", "prepare", "quickstart"):
        assert f"\n  {command} " in shown


@pytest.mark.slow
def test_a_recipe_by_name_is_smoke_tested(installed, tmp_path):
    shown = byov(installed, tmp_path, "train", "--config=quickstart:byov", "--smoke")
    assert "smoke: quickstart:byov trains, saves, loads and predicts" in shown


@pytest.mark.slow
def test_the_quickstart_runs_to_its_report(installed, tmp_path):
    shown = byov(installed, tmp_path, "quickstart", "--smoke")
    assert "BYOV, 30 draws" in shown
    page = tmp_path / "runs" / "quickstart" / "report.html"
    assert page.stat().st_size > 100_000
