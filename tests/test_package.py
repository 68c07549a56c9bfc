"""The package as a whole: what importing costs, who may import whom, what is public."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import byov_jax

ROOT = Path(byov_jax.__file__).parent
ALLOWED = {
    "images": set(),
    "networks": set(),
    "bayes": set(),
    "data": set(),
    "train": {"images", "networks", "bayes", "data"},
    "evaluate": {"images", "networks", "bayes"},
    "report": {"train"},
    "planner": {"train", "data"},
}
PUBLIC = [
    "Posterior",
    "Bayesian",
    *(f"posterior.{name}" for name in ("init", "sample", "mean", "snr", "size", "kl")),
    *(f"priors.{name}" for name in ("standard", "teacher_mean", "teacher_moments")),
    *(f"methods.{name}" for name in ("byol", "byov", "supervised", "supervised_bbb")),
    *(f"schedules.{name}" for name in ("cosine", "ema_cosine", "scale_ema")),
    *(f"metrics.{name}" for name in ("top_k", "nll", "brier", "brier_decomposition", "ece", "mce")),
    *(f"metrics.{name}" for name in ("adaptive_ece", "entropy", "mutual_information", "predictive_std")),
    *(f"metrics.{name}" for name in ("auroc", "Calibration")),
    "predictive.predict",
    *(f"pruning.{name}" for name in ("snr_mask", "magnitude_mask", "apply")),
    "shifts.NAMES",
    "shifts.apply",
    "load",
]


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def test_importing_touches_no_device_and_no_tensorflow():
    result = run(
        "import sys\n"
        "sys.modules['tensorflow'] = None\n"  # importing it would raise
        "import byov_jax\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a device was created'\n"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name):
    value = byov_jax
    for part in name.split("."):
        value = getattr(value, part)
    assert value.__doc__


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_downward(package):
    for file in (ROOT / package).rglob("*.py"):
        for imported in imports(file):
            parts = imported.split(".")
            if parts[0] == "byov_jax" and len(parts) > 1:
                assert parts[1] in ALLOWED[package] | {package}, f"{file.name} imports {imported}"
            if parts[0] == "flax" and package != "networks":
                assert file.name == "module.py", f"{file.name} imports flax"


def test_the_report_knows_of_training_only_where_its_files_lie():
    for file in (ROOT / "report").rglob("*.py"):
        for imported in imports(file):
            if imported.startswith("byov_jax.train"):
                assert imported.startswith("byov_jax.train.directory"), f"{file.name} imports {imported}"


def test_importing_does_not_load_what_only_reports_need():
    result = run(
        "import sys\n"
        "import byov_jax\n"
        "from byov_jax.report import groups\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    assert result.returncode == 0, result.stderr


def imports(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names
