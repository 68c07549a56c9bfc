"""A config from the command line: every type of value, sections, variants, and what was misspelt."""

import re

import pytest

from byov_jax.cli import config_flags
from byov_jax.training import build

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
        config_flags.load_config(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_file_and_the_defaults_make_a_config(file):
    config = config_flags.load_config(str(file))
    assert config == build.complete(
        {
            "method": "byov",
            "steps": 7,
            "encoder": {"name": "vit", "patch": 7, "width": 8, "depth": 1, "heads": 2},
        }
    )
    assert config_flags.load_config(f"{file}:byol") == config | {"method": "byol"}


def test_a_config_may_be_a_plain_dict(file):
    assert config_flags.load_config(str(file.with_name("other.py"))) == build.complete({"steps": 5})


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("steps=2000", 2000),
        ("steps=1e3", 1000.0),  # not an integer: `validate` says so
        ("tau=0.5", 0.5),
        ("tau=1", 1),
        ("draw_per_view=True", True),
        ("draw_per_view=false", False),
        ("prior=teacher_mean", "teacher_mean"),
        ("where=(qkv|out)/kernel", "(qkv|out)/kernel"),
        ("where=all=none", "all=none"),
        ("data.source=123", "123"),  # stays a word, as it was
        ("data.source=a b.npz", "a b.npz"),
        ("projector.widths=(16,8)", (16, 8)),
        ("projector.widths=16,8", (16, 8)),
        ("projector.widths=[16, 8]", (16, 8)),
        ("optimizer.learning_rate=1e-3", 1e-3),
        ("optimizer.warmup=10", 10),
        ("optimizer.clip_norm=None", None),  # new in an open section
        ("encoder.size=Ti/16", "Ti/16"),
        ("encoder.drop_path=0.1", 0.1),
        ("views.area=0.5,1", (0.5, 1)),
        ("steps=", ""),
        ("steps={[1]: 2}", "{[1]: 2}"),
        ("steps=__import__('os')", "__import__('os')"),  # read, never run
    ],
)
def test_a_change_is_read_as_what_it_looks_like(file, change, value):
    config = config_flags.load_config(str(file), [change])
    for key in change.partition("=")[0].split("."):
        config = config[key]
    assert config == value
    assert type(config) is type(value)


def test_the_last_change_wins_and_the_rest_stays(file):
    config = config_flags.load_config(str(file), ["optimizer.warmup=3", "steps=9", "steps=8"])
    before = config_flags.load_config(str(file))
    assert config["steps"] == 8
    assert config["optimizer"] == before["optimizer"] | {"warmup": 3}
    assert {k: v for k, v in config.items() if k not in ("steps", "optimizer")} == {
        k: v for k, v in before.items() if k not in ("steps", "optimizer")
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stepz=3", "config has no key stepz: did you mean steps?"),
        ("xyz=3", "config has no key xyz: there are accumulate, batch_size"),
        ("data.sorce=x", "config has no key data.sorce: did you mean data.source?"),
        ("projector.width=3", "config has no key projector.width: did you mean projector.widths?"),
        ("optimiser.warmup=3", "config has no section optimiser: did you mean optimizer?"),
        ("xyz.warmup=3", "config has no section xyz: there are parallel, data, encoder"),
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
    assert config_flags.split(arguments) == (
        ["--config=a.py", "--smoke", "--workdir", "x"],
        ["steps=3", "where=a=b"],
    )
    assert config_flags.split(["--config.steps"]) == ([], ["steps="])
