"""`byov` and its launchers: the list of commands, help, recipes by name, and wrong input."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from byov_jax import recipes
from byov_jax.cli import flags, main
from byov_jax.errors import ConfigError
from byov_jax.training import schema
from byov_jax.training.config import Config
from tools import config_table

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def help_of(capsys, command) -> str:
    with pytest.raises(SystemExit) as stopped:
        main.main([command, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_lists_every_command(argument, capsys):
    assert main.main([argument]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, meaning in main.COMMANDS.items():
        assert f"  {name:12} {meaning}" in lines


@pytest.mark.parametrize("arguments", [[], ["cook"], ["--verbose"], ["trian", "--help"]])
def test_an_unknown_command_lists_the_commands(arguments, capsys):
    assert main.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(f"  {name} " in shown.err for name in main.COMMANDS)
    assert not arguments or shown.err.startswith(f"byov: {arguments[0]!r} is no command\n")


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_command_has_help_and_a_launcher(command, capsys):
    assert help_of(capsys, command).startswith(f"usage: byov {command} [-h]")
    launcher = import_module(f"experiments.{command}")
    assert launcher.main is import_module(f"byov_jax.cli.{command}").main


def test_there_are_no_other_launchers():
    files = {file.stem for file in (ROOT / "experiments").glob("*.py")} - {"__init__"}
    assert files == set(main.COMMANDS)


@pytest.mark.parametrize("command", ["train", "imagenet"])
def test_help_explains_every_key_of_a_config(command, capsys):
    lines = help_of(capsys, command).splitlines()
    for key in schema.keys(Config):
        explained = lines[lines.index(f"  {key.name}") + 1]
        assert key.meaning in explained
        assert key.allowed in explained


def test_sections_with_a_name_list_each_key_once():
    keys = {key.name: key for key in schema.keys(Config)}
    assert len(keys) == len(schema.keys(Config))
    assert (keys["encoder.name"].allowed, keys["encoder.name"].default) == ("one of resnet, vit", "vit")
    assert (keys["optimizer.name"].allowed, keys["optimizer.name"].default) == ("one of adamw, lars", "adamw")
    assert keys["encoder.depth"].meaning == "vit: number of blocks; resnet: 18 or 50"
    assert keys["optimizer.momentum"].meaning == "lars: heavy-ball momentum"


def test_the_documentation_has_the_table_of_keys():
    page = config_table.PAGE.read_text()
    remedy = f"{config_table.PAGE} is not up to date: run python -m tools.config_table"
    assert config_table.updated(page) == page, remedy
    assert all(f"| `{key.name}`" in page for key in schema.keys(Config))


@pytest.mark.parametrize("name", recipes.NAMES)
def test_a_recipe_is_named_without_its_file(name):
    file = ROOT / "experiments" / "configs" / f"{name}.py"
    assert flags.load_config(name) == flags.load_config(str(file))
    assert flags.load_config(f"{name}:byol") == flags.load_config(f"{file}:byol")
    assert flags.load_config(f"{name}:byol").method == "byol"
    assert flags.baseline(f"{name}:byov") == flags.baseline(f"{file}:byov").replace(str(file), name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quickstrat:byov", "--config=quickstrat: did you mean quickstart? (or name a Python file, FILE.py)"),
        ("imgnet:byol", "--config=imgnet: did you mean imagenet?"),
        ("xyz", "--config=xyz: there are cifar10, fashion_mnist, folder, imagenet, quickstart"),
        ("quickstart:simclr", "--config=quickstart:simclr: unknown variant 'simclr'"),
    ],
)
def test_a_misspelt_recipe_gets_a_hint(name, message):
    with pytest.raises(ConfigError) as error:
        flags.load_config(name)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("command", ["train", "report"])
def test_a_launcher_is_the_command(command):
    result = run(f"experiments.{command}", "--help")
    assert result.returncode == 0, result.stderr
    assert result.stdout == run("byov_jax.cli.main", command, "--help").stdout
    assert result.stdout.startswith(f"usage: byov {command} ")


@pytest.mark.slow
def test_the_step_benchmark_writes_json(tmp_path):
    file = tmp_path / "step.json"
    result = run("benchmarks.step", "--case=small", "--repeats=1", "--compilations=1", f"--json={file}")
    assert result.returncode == 0, result.stderr
    measured = json.loads(file.read_text())["small"]
    assert measured["step_ratio"] > 0.0
    for method in ("byol", "byov"):
        assert measured[method]["compile_cpu_seconds"] > 0.0
        assert measured[method]["instructions"] > 1000
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
