"""--config and --config.KEY=VALUE: values of every type, variants, misspelt keys; the flags of a cluster."""

import argparse
import re

import pytest

from byov_jax.cli import command, flags, imagenet
from byov_jax.distributed import cluster
from byov_jax.training.config import Config

FILE = """
import ml_collections

def get_config(variant="byov"):
    if variant not in ("byov", "byol"):
        raise ValueError(f"unknown variant {variant!r}: there are byov, byol")
    return ml_collections.ConfigDict({
        "method": variant,
        "steps": 7,
        "encoder": {"name": "vit", "patch": 7, "width": 8, "depth": 1, "heads": 2},
    })
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "other.py").write_text("def get_config(variant=None):\n    return {'steps': 5}\n")
    (tmp_path / "no_config.py").write_text("STEPS = 3\n")
    (tmp_path / "config.py").write_text(FILE)
    return tmp_path / "config.py"


def refusal(*arguments) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011, each test checks the message
        flags.load_config(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_file_and_the_defaults_make_a_config(file):
    config = flags.load_config(str(file))
    assert config == Config.parse(
        {
            "method": "byov",
            "steps": 7,
            "encoder": {"name": "vit", "patch": 7, "width": 8, "depth": 1, "heads": 2},
        }
    )
    assert flags.load_config(f"{file}:byol") == config.updated({"method": "byol"})


def test_a_config_may_be_a_plain_dict(file):
    assert flags.load_config(str(file.with_name("other.py"))) == Config.parse({"steps": 5})


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("steps=2000", 2000),
        ("tau=0.5", 0.5),
        ("tau=1", 1.0),
        ("draw_per_view=True", True),
        ("draw_per_view=false", False),
        ("prior=teacher_mean", "teacher_mean"),
        ("where=(qkv|out)/kernel", "(qkv|out)/kernel"),
        ("where=all=none", "all=none"),
        ("data.source=123", "123"),  # stays a string, as its default is
        ("data.source=a b.npz", "a b.npz"),
        ("projector.widths=(16,8)", (16, 8)),
        ("projector.widths=16,8", (16, 8)),
        ("projector.widths=[16, 8]", (16, 8)),
        ("optimizer.learning_rate=1e-3", 1e-3),
        ("optimizer.warmup=5", 5),
        ("optimizer.clip_norm=None", None),  # not in the file
        ("encoder.size=Ti/16", "Ti/16"),
        ("encoder.drop_path=0.1", 0.1),
        ("views.area=0.5,1", (0.5, 1.0)),
    ],
)
def test_a_change_is_parsed_as_what_it_looks_like(file, change, value):
    config = flags.load_config(str(file), [change])
    for key in change.partition("=")[0].split("."):
        config = getattr(config, key)
    assert config == value
    assert type(config) is type(value)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("steps=1e3", 1000.0),
        ("steps=", ""),
        ("steps={[1]: 2}", "{[1]: 2}"),
        ("steps=__import__('os')", "__import__('os')"),  # parsed, never evaluated
    ],
)
def test_a_value_of_another_type_is_refused_as_it_was_parsed(file, change, value):
    assert refusal(str(file), [change]) == f"config.steps={value!r} must be an integer"


def test_the_last_change_wins_and_the_rest_stays(file):
    config = flags.load_config(str(file), ["optimizer.warmup=3", "steps=9", "steps=8"])
    before = flags.load_config(str(file))
    assert config.steps == 8
    assert config.optimizer.to_dict() == before.optimizer.to_dict() | {"warmup": 3}
    assert {k: v for k, v in config.to_dict().items() if k not in ("steps", "optimizer")} == {
        k: v for k, v in before.to_dict().items() if k not in ("steps", "optimizer")
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stepz=3", "config has no key stepz: did you mean steps?"),
        ("xyz=3", "config has no key xyz: there are accumulate, batch_size"),
        ("data.sorce=x", "config has no key data.sorce: did you mean data.source?"),
        ("projector.width=3", "config has no key projector.width: did you mean projector.widths?"),
        ("optimiser.warmup=3", "config has no section optimiser: did you mean optimizer?"),
        ("xyz.warmup=3", "config has no section xyz: there are data, encoder, guard"),
        ("steps.x=3", "config has no section steps"),
        ("encoder=resnet", "config.encoder is a section: set one of encoder.name"),
    ],
)
def test_a_misspelt_key_is_refused_with_a_hint(file, change, message):
    assert refusal(str(file), [change]).startswith(message)


def test_files_that_are_no_configs_are_refused(file):
    folder = file.parent
    there = f"there are {folder / 'config.py'}, {folder / 'other.py'}"
    assert refusal(str(folder / "confg.py")) == f"--config={folder / 'confg.py'} is not a file; {there}"
    assert refusal(str(folder)) == f"--config={folder} is not a file; {there}"
    assert refusal(f"{folder}/none/x.py").endswith("x.py is not a file; there are no configs beside it")
    assert refusal(str(folder / "no_config.py")).endswith("no_config.py has no get_config(variant)")
    (folder / "config.yaml").write_text("steps: 3")
    assert "its name must end in .py" in refusal(str(folder / "config.yaml"))


def test_an_unknown_variant_is_refused_with_the_file(file):
    message = f"--config={file}:simclr: unknown variant 'simclr': there are byov, byol"
    assert refusal(f"{file}:simclr") == message


def test_a_file_with_a_misspelt_key_is_refused(file):
    file.write_text(FILE.replace('"steps"', '"step"'))
    assert re.match(r"config has no key step: did you mean steps\?", refusal(str(file)))


def test_changes_are_told_from_other_arguments():
    arguments = ["--config=a.py", "--config.steps=3", "--smoke", "--config.where", "a=b", "--workdir", "x"]
    assert flags.split_config_flags(arguments) == (
        ["--config=a.py", "--smoke", "--workdir", "x"],
        ["steps=3", "where=a=b"],
    )
    assert flags.split_config_flags(["--config.steps"]) == ([], ["steps="])


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, None),
        ({"SLURM_NTASKS": "8"}, None),  # a shell of salloc, not a task of srun
        ({"SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, "Slurm"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI"),
        ({"TPU_WORKER_HOSTNAMES": "a"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "a TPU pod"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, "Kubernetes"),
    ],
)
def test_a_cluster_is_detected_by_its_environment(environment, name, monkeypatch):
    joined = []
    monkeypatch.setattr(cluster.os, "environ", environment)
    monkeypatch.setattr(cluster.jax.distributed, "initialize", lambda **given: joined.append(given))
    assert cluster.detect() == name
    for distributed, expected in (("auto", name is not None), ("on", True), ("off", False)):
        joined.clear()
        flags.initialize_cluster(arguments(f"--distributed={distributed}"))
        assert bool(joined) == expected


def arguments(*argv):
    parser = argparse.ArgumentParser()
    flags.add_cluster_flags(parser)
    return parser.parse_args(argv)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--coordinator=localhost:1"], "go together: give all three"),
        (["--coordinator=localhost:1", "--processes=2", "--process=2"], "--process=2 must be from 0 to 1"),
        (["--heartbeat=0"], "--heartbeat=0 must be at least 1 second"),
    ],
)
def test_wrong_cluster_flags_are_one_clear_line(given, message, capsys, tmp_path):
    argv = ["--config=imagenet", f"--workdir={tmp_path / 'run'}", *given]
    assert imagenet.main(argv) == command.EXIT_BAD_INPUT
    assert message in capsys.readouterr().err


def test_a_cluster_that_cannot_be_joined(monkeypatch):
    def initialize(**given):
        raise ValueError("coordinator_address should be defined")

    monkeypatch.setattr(cluster.jax.distributed, "initialize", initialize)
    with pytest.raises(cluster.RunError, match="give --coordinator=HOST:PORT"):
        flags.initialize_cluster(arguments("--distributed=on"))
