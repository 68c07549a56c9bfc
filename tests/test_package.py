"""The package as a whole: what importing costs, who may import whom, what is public."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import byov_jax

ROOT = Path(byov_jax.__file__).parent
LAYERS = [
    {"errors", "role", "ranges"},
    {"files"},
    {"bayes", "networks", "images"},
    {"methods", "evaluation"},
    {"distributed", "data"},
    {"checkpoints"},
    {"training"},
    {"model"},
    {"evaluation.suite"},
    {"report", "planner"},
    {"recipes"},
    {"cli"},
]
"""Layers of modules and packages, the lowest first: each imports from itself and from lower layers only."""

FLAX = ("networks", "bayes/module.py")
"""Where Flax may be imported, so that another neural network library would change these alone."""

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


@pytest.mark.parametrize(
    "package",
    [
        "byov_jax",
        "byov_jax.evaluation.metrics",
        "byov_jax.images",
        "byov_jax.methods",
        "byov_jax.networks",
    ],
)
def test_all_lists_what_a_package_exports(package):
    module = importlib.import_module(package)
    nodes = ast.parse(Path(module.__file__).read_text()).body
    aliases = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert set(module.__all__) == {alias.asname for alias in aliases if alias.asname == alias.name}


@pytest.mark.parametrize("package", ["bayes", "networks", "images", "methods", "evaluation"])
def test_no_function_hides_a_module(package):
    for file in (ROOT / package).rglob("*.py"):
        *parents, name = file.relative_to(ROOT.parent).with_suffix("").parts
        if name != "__init__":
            module = importlib.import_module(".".join((*parents, name)))
            assert getattr(importlib.import_module(".".join(parents)), name) is module


@pytest.mark.parametrize("package", sorted(set().union(*LAYERS)))
def test_imports_point_downward(package):
    assert forbidden(files_of(package), allowed(package)) == []


def test_a_forbidden_import_is_found(tmp_path):
    """The test above can fail: an import of the trainer from the posterior is one line in its list."""
    file = tmp_path / "posterior.py"
    file.write_text("from byov_jax.bayes import select\nfrom byov_jax.training import trainer\n")
    found = forbidden([file], allowed("bayes"))
    assert found == [f"{file} imports byov_jax.training.trainer"]


def test_every_module_has_a_layer():
    found = {
        package_of(".".join(file.relative_to(ROOT.parent).with_suffix("").parts))
        for file in ROOT.rglob("*.py")
    }
    assert found - {"__init__"} == set().union(*LAYERS)


def test_flax_is_imported_in_few_places():
    for file in ROOT.rglob("*.py"):
        if not str(file.relative_to(ROOT)).startswith(FLAX):
            assert not [name for name in imports(file) if name.split(".")[0] == "flax"], file


def test_experiments_are_launchers():
    for file in (ROOT.parent / "experiments").glob("*.py"):
        assert len(file.read_text().splitlines()) <= 15, file


def package_of(module: str) -> str:
    """The package of a module: the longest name in LAYERS that it begins with."""
    parts = module.split(".")[1:]
    packages = set().union(*LAYERS)
    return next((".".join(parts[:n]) for n in (2, 1) if ".".join(parts[:n]) in packages), ".".join(parts[:1]))


def files_of(package: str) -> list[Path]:
    files = (
        [ROOT / f"{package}.py"]
        if (ROOT / f"{package}.py").is_file()
        else ROOT.joinpath(*package.split(".")).rglob("*.py")
    )
    return [
        file
        for file in files
        if package_of(".".join(file.relative_to(ROOT.parent).with_suffix("").parts)) == package
    ]


def allowed(package: str) -> set[str]:
    level = next(level for level, packages in enumerate(LAYERS) if package in packages)
    return set().union(*LAYERS[:level]) | {package}


def forbidden(files: list[Path], allowed: set[str]) -> list[str]:
    return [
        f"{file} imports {name}"
        for file in files
        for name in imports(file)
        if name.split(".")[0] in ("byov_jax", "experiments") and package_of(name) not in allowed
    ]


def test_importing_does_not_load_what_only_reports_need():
    result = run(
        "import sys\n"
        "import byov_jax\n"
        "from byov_jax.report import aggregate\n"
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
