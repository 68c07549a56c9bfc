"""The compilation cache of the commands: where it is, off, not writable, bounded, hit; how long it took."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from byov_jax.cli import compilation, progress, train
from byov_jax.training import run_directory
from byov_jax.training.config import Config

CONFIG = """
def get_config(variant="supervised"):
    return {
        "method": variant,
        "steps": 2,
        "batch_size": 16,
        "data": {"source": "SOURCE"},
        "encoder": {"name": "vit", "patch": 7, "width": 8, "depth": 1, "heads": 2, "mlp_width": 8},
        "views": {"name": "small_gray", "size": 14},
    }
"""
NAMES = ("jax_enable_compilation_cache", "jax_compilation_cache_dir", *compilation.SETTINGS)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home of a user whose JAX has its own defaults."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", *map(str.upper, NAMES)):
        monkeypatch.delenv(name, raising=False)
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def directory():
    return jax.config.jax_compilation_cache_dir


@pytest.mark.parametrize(
    ("platform", "xdg", "expected"),
    [
        ("linux", "", ".cache/byov_jax"),
        ("linux", "HOME/caches", "caches/byov_jax"),
        ("linux", "relative", ".cache/byov_jax"),  # as the specification of XDG_CACHE_HOME has it
        ("darwin", "HOME/caches", "Library/Caches/byov_jax"),
    ],
)
def test_it_is_on_in_the_users_cache_directory(platform, xdg, expected, home, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg.replace("HOME", str(home)))
    compilation.enable(None)
    assert directory() == str(home / expected)
    assert (home / expected).stat().st_mode & 0o777 == 0o700  # programs in it are run
    assert jax.config.jax_compilation_cache_max_size == 2**30


def test_off_a_directory_and_what_the_environment_says(home, monkeypatch):
    compilation.enable("off")
    assert not jax.config.jax_enable_compilation_cache
    compilation.enable(str(home / "other"))  # nor does another command of this process switch it on
    assert directory() is None
    jax.config.update("jax_enable_compilation_cache", True)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "1000")
    jax.config.update("jax_compilation_cache_max_size", 1000)
    compilation.enable(str(home / "other"))
    assert directory() == str(home / "other")
    assert jax.config.jax_compilation_cache_max_size == 1000
    compilation.enable(None)  # JAX_COMPILATION_CACHE_DIR looks the same
    assert directory() == str(home / "other")
    compilation.enable("gs://bucket/compiled")
    assert directory() == "gs://bucket/compiled"


def test_one_that_cannot_be_written_costs_a_line(home, capsys):
    (home / "file").write_text("")
    compilation.enable(str(home / "file" / "cache"))
    assert directory() is None
    expected = f"compilation cache: {home}/file/cache cannot be written (Not a directory): continuing without"
    assert capsys.readouterr().err == f"{expected}\n"
    with compilation.timed("the training step", Config.parse({}), print):
        pass
    assert capsys.readouterr().out == "compiling the training step\n"


def test_the_least_recently_used_programs_go_and_incomplete_ones(home, monkeypatch):
    monkeypatch.setitem(compilation.SETTINGS, "jax_compilation_cache_max_size", 10_000)
    monkeypatch.setitem(compilation.SETTINGS, "jax_persistent_cache_min_compile_time_secs", 0.0)
    folder = home / ".cache" / "byov_jax"
    folder.mkdir(parents=True)
    (folder / "killed-cache").write_bytes(b"x" * 9_000)  # of a process that was killed in the middle
    compilation.enable(None)
    assert not (folder / "killed-cache").exists()
    x, kept = jnp.ones(()), set()
    for power in range(2, 10):
        jax.jit(lambda x, power=power: jnp.sin(x) ** power)(x)
        files = list(folder.glob("*-cache"))
        kept |= {file.name for file in files}
        assert sum(file.stat().st_size for file in files) <= 10_000
    assert len(files) < len(kept)


def test_importing_changes_no_setting():
    code = (
        "import jax\nbefore = dict(jax.config.values)\nimport byov_jax\nassert jax.config.values == before\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)


@pytest.fixture
def config(tmp_path):
    rng, arrays = np.random.default_rng(0), {}
    for split in ("train", "test"):
        arrays[f"{split}_image"] = rng.integers(0, 256, (32, 14, 14, 1), np.uint8)
        arrays[f"{split}_label"] = np.arange(32) % 3
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "config.py").write_text(CONFIG.replace("SOURCE", str(tmp_path / "data.npz")))
    return tmp_path / "config.py"


def test_a_second_run_compiles_nothing_and_gives_the_same_numbers(
    config, home, one_device, monkeypatch, capsys
):
    monkeypatch.setitem(compilation.SETTINGS, "jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation.enable(None)  # the command does so after it has checked its config
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    metrics, missed, hit = [], [], []
    for name in ("first", "second"):
        jax.clear_caches()
        events.clear()
        assert train.main([f"--config={config}", f"--workdir={home / name}"]) == 0
        missed.append(events.count("/jax/compilation_cache/cache_misses"))
        hit.append(events.count("/jax/compilation_cache/cache_hits"))
        lines = (home / name / run_directory.METRICS).read_text().splitlines()
        times = ("seconds", "images_per_second")
        metrics.append([{k: v for k, v in json.loads(line).items() if k not in times} for line in lines])
    assert missed[0] > 5
    assert missed[1] == 0
    assert hit[1] >= missed[0]
    assert metrics[0] == metrics[1]
    shown = [line for line in capsys.readouterr().out.splitlines() if "compiling" in line]
    assert shown[0] == "supervised  compiling the training step"
    assert shown[1].startswith("supervised  compiling the training step (")
    assert shown[1].endswith(" s last time)")


def seconds(text):
    return text.partition("(")[2].removesuffix(" s last time)")


def test_the_line_says_how_long_the_same_program_took(home, monkeypatch, capsys):
    compilation.enable(None)
    clock = iter(range(0, 1000, 12))
    monkeypatch.setattr(compilation.time, "perf_counter", lambda: next(clock))

    def compiled(config):
        with progress.training("byov", 0, config) as callbacks, callbacks.compiling("the training step"):
            pass
        (line,) = capsys.readouterr().out.splitlines()
        return seconds(line)

    config = Config.parse({"steps": 9})
    assert compiled(config) == ""
    assert compiled(config) == "12"
    assert compiled(config.updated({"seed": 1, "log_every": 3})) == "12"  # the same program
    assert compiled(config.updated({"batch_size": 8})) == ""
    file = home / ".cache" / "byov_jax" / compilation.SECONDS
    assert list(json.loads(file.read_text()).values()) == [12, 12]
    for damaged in ("{", "[]", json.dumps(dict.fromkeys(json.loads(file.read_text()), "12"))):
        file.write_text(damaged)
        assert compiled(config) == ""
        assert compiled(config) == "12"


def test_a_terminal_shows_it_in_the_bar_until_it_is_done(home, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with progress.training("byov", 0, Config.parse({"steps": 9})) as callbacks:
        callbacks.metrics({"step": 0, "probe": 0.5})
        with callbacks.compiling("the training step"):
            assert "| 0/9 [00:00<?, compiling the training step  probe 50.0%]" in capsys.readouterr().err
        shown = capsys.readouterr()
        assert "probe 50.0%]" in shown.err
        assert "compiling" not in shown.err
    assert shown.out == ""


def test_only_so_many_durations_are_kept(home, monkeypatch):
    monkeypatch.setattr(compilation, "MAX_SECONDS", 3)
    compilation.enable(None)
    for batch_size in (1, 2, 3, 1, 4):
        with compilation.timed("it", Config.parse({"batch_size": batch_size}), lambda text: None):
            pass
    said = []
    for batch_size in (1, 2, 3, 4):
        with compilation.timed("it", Config.parse({"batch_size": batch_size}), said.append):
            (Path.home() / ".cache" / "byov_jax" / compilation.SECONDS).read_text()
    assert said[1] == "compiling it"  # the oldest
