"""`byov plan` as a user meets it: for this machine, for a TPU slice, and with wrong inputs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from byov_jax.cli import plan
from byov_jax.planner import machine

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "experiments" / "configs"
TINY = """
def get_config(variant="byov"):
    return {
        "method": variant,
        "steps": 3600,
        "batch_size": 16,
        "data": {"source": "nowhere", "size": 640, "image": (16, 16, 3), "classes": 3, "loader": "stream"},
        "encoder": {"name": "vit", "patch": 8, "width": 16, "depth": 2, "heads": 2, "scan": True}
        | {"pool": "mean", "positions": "sincos", "mlp_width": 16},  # few shapes: noise compiles per shape
        "projector": {"widths": (16, 16)},
        "predictor": {"widths": (16, 16)},
        "views": {"name": "small_color", "size": 16, "jitter": 0.0, "grayscale": 0.0, "solarize": 0.0},
    }
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Restore the environment, which planning for a TPU changes."""
    for key in (*machine.LIBTPU_ENVIRONMENT, "XLA_FLAGS"):
        before = os.environ.get(key)
        monkeypatch.setenv(key, before or "")
        if before is None:
            monkeypatch.delenv(key)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A config whose data need not exist."""
    file = tmp_path_factory.mktemp("tiny") / "config.py"
    file.write_text(TINY)
    return f"--config={file}"


def test_a_plan_for_this_machine(tiny, tmp_path, capsys, one_device):
    file = tmp_path / "plan.json"
    assert plan.main([tiny, "--compare=remat", f"--json={file}"]) == 0
    shown = capsys.readouterr()
    table = shown.out
    assert "local: 1 device on 1 host" in table
    assert "byov / byol" in table
    assert "images/s that one core of this machine decodes and crops" in table
    assert "plan: compiling byov, for local, batch 16, recomputing activations: " in shown.err

    found = json.loads(file.read_text())
    assert found["chip"]["source"] == "measured on this machine"
    byol, byov = found["steps"]
    assert [byol["method"], byov["method"]] == ["byol", "byov"]
    assert (byol["bayesian_parameters"], byov["bayesian_parameters"]) == (0, byov["parameters"])
    for step in (byol, byov):
        assert step["fits"]
        assert step["memory_bytes"] > step["state_bytes"] > 4 * step["parameters"]
        assert step["hours"] == pytest.approx(step["seconds"]["at_least"])  # 3600 steps
        assert step["images_per_second"] == pytest.approx(16 / step["seconds"]["at_least"])
        assert step["cost"]["flops"] > 0
        assert step["cost"]["unknown_loops"] == 0
    assert byov["state_bytes"] > byol["state_bytes"]
    assert found["ratios"]["flops"] == pytest.approx(1.0)
    for name in ("memory", "memory_allocated"):
        assert found["ratios"][name] == byov[f"{name}_bytes"] / byol[f"{name}_bytes"]
    assert found["ratios"]["bytes"] == byov["cost"]["bytes"] / byol["cost"]["bytes"]
    assert found["host"]["images_per_second_of_a_core"] > 0.0
    recomputing, not_recomputing = found["compare"]["remat"]
    assert not_recomputing == byov
    assert recomputing["cost"]["flops"] > byov["cost"]["flops"]


def test_a_step_that_does_not_fit_prints_a_remedy(tiny, tmp_path, capsys, one_device, monkeypatch):
    measured = machine.local("float32")
    real = plan.steps.compile_step
    step = None

    def compile_step(config, target):
        """Report that micro-batches of more than 4 images do not fit."""
        nonlocal step
        step = step or real(config, target)
        return step._replace(allocated=2**50 if config.batch_size // config.accumulate > 4 else 1)

    monkeypatch.setattr(plan.steps, "compile_step", compile_step)
    monkeypatch.setattr(plan.machine, "local", lambda dtype: measured)
    file = tmp_path / "plan.json"
    assert plan.main([f"{tiny}:byol", f"--json={file}", "--config.encoder.remat=True"]) == 1
    assert "it does not fit; with this change it does: --config.accumulate=4" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert not found["steps"][0]["fits"]
    assert found["remedy"]["change"] == "--config.accumulate=4"
    assert found["remedy"]["step"]["fits"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v5e"], "--topology=v5e: expected CHIP:SHAPE, one of v5e:{1x1,"),
        (["--topology=v6e:4x4x"], "--topology=v6e:4x4x: expected CHIP:SHAPE"),
        (["--config.batch_size=12"], "config.batch_size=12 must be a multiple of the 8 devices"),
        (["--config.batch_size=8000"], "config.batch_size=8000 must be at most the 640 training images"),
        (["--config.encodr.width=8"], "did you mean encoder?"),
        (["--json=nowhere/plan.json"], "--json=nowhere/plan.json: nowhere is not a directory"),
    ],
)
def test_a_wrong_command_is_one_clear_line(arguments, message, tiny, capsys):
    assert plan.main([tiny, *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("plan: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_unknown_comparisons_are_an_error(tiny, capsys):
    with pytest.raises(SystemExit) as stopped:
        plan.main([tiny, "--compare=batch,colour"])
    assert stopped.value.code == 2
    assert "--compare=colour: expected some of batch, remat, mesh" in capsys.readouterr().err


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as stopped:
        plan.main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    for word in ("--config", "--topology", "--compare", "--json", "byov-jax[plan]", "Exit codes"):
        assert word in shown


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("TPU_LIBRARY_PATH") and importlib.util.find_spec("libtpu") is None,
    reason="no libtpu: pip install 'byov-jax[plan]'",
)
def test_a_plan_for_a_tpu_slice(tiny, tmp_path):
    file = tmp_path / "plan.json"
    command = [sys.executable, "-m", "experiments.plan", tiny, "--topology=v5e:2x2", f"--json={file}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert "v5e:2x2: 4 devices on 1 host, v5e" in result.stdout
    found = json.loads(file.read_text())
    assert found["chip"]["flops"] == 197e12
    for step in found["steps"]:
        assert (step["devices"], step["hosts"], step["fits"]) == (4, 1, True)
        assert step["cost"]["unknown_loops"] == 0
        assert sum(step["cost"]["collectives"].values()) > 0
    assert found["ratios"]["flops"] == pytest.approx(1.0, abs=0.01)
