"""The data benchmark as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.data", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_it_writes_rates_shares_and_memory(tmp_path):
    file = tmp_path / "data.json"
    result = run("--repeats=1", "--workers", "0", "--batches=20", f"--json={file}")
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    measured = json.loads(file.read_text())
    assert 90 < measured["decode"]["mean_kilobytes"] < 130
    assert 0.3 < measured["decode"]["decode_and_crop"]["share_of_decode"] < 1.2
    assert measured["pipeline"]["0"]["images_per_second"] > 0
    assert measured["scaling"]["1"]["times_one_worker"] == 1.0
    assert len(measured["memory"]["resident_mib"]) == 10


def test_bad_input_is_one_clear_line():
    for arguments, problem in (
        (("--repeats=0",), "--repeats=0 must be at least 1"),
        (("--source=nowhere",), "--source: data 'nowhere' is neither 'fashion_mnist', nor tfds:NAME"),
    ):
        result = run(*arguments)
        assert result.returncode == 2
        assert problem in result.stderr
        assert "Traceback" not in result.stderr
