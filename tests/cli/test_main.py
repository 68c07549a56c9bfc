"""The commands as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_the_step_benchmark_writes_json(tmp_path):
    file = tmp_path / "step.json"
    result = run("benchmarks.step", "--case=small", "--repeats=1", f"--json={file}")
    assert result.returncode == 0, result.stderr
    measured = json.loads(file.read_text())["small"]
    assert measured["step_ratio"] > 0.0
    for method in ("byol", "byov"):
        assert measured[method]["compile_seconds"] > 0.0
        assert measured[method]["peak_temporary_mib"] > 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("experiments.quickstart", "--steps=1"), "--steps=1 must be at least 2"),
        (("experiments.quickstart", "--steps=many"), "invalid int value: 'many'"),
        (("benchmarks.step", "--case=huge"), "invalid choice: 'huge'"),
        (("benchmarks.step", "--repeats=0"), "--repeats=0 must be at least 1"),
        (("benchmarks.predictive", "--repeats=0"), "--repeats=0 must be at least 1"),
        (("experiments.evaluate", "--run=nowhere"), "evaluate: nowhere is not a directory"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
