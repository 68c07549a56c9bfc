"""The run directory: configs round-trip, damage is an error of one line, and writes are atomic."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from byov_jax import files
from byov_jax.errors import RunError
from byov_jax.training import run_directory
from byov_jax.training.config import Config

CONFIG = Config.parse(
    {"method": "byol", "data": {"image": (28, 28, 1)}, "projector": {"widths": (16, 8)}, "tau": 0.9}
)


def refusal(run) -> str:
    """The message of the refusal: one line that names the place."""
    with pytest.raises(RunError) as error:
        run_directory.read_config(run)
    message = str(error.value)
    assert message.startswith(str(run))
    assert "\n" not in message
    return message


def test_a_config_comes_back_as_it_was(tmp_path):
    run = tmp_path / "deep" / "run"
    run_directory.create(run, CONFIG)
    assert run_directory.read_config(run) == CONFIG


def test_creating_again_replaces_the_config(tmp_path):
    run_directory.create(tmp_path, CONFIG)
    run_directory.create(tmp_path, CONFIG.updated({"steps": 3}))
    assert run_directory.read_config(tmp_path).steps == 3


def test_the_environment_says_what_ran(tmp_path):
    run_directory.create(tmp_path, CONFIG)
    found = json.loads((tmp_path / run_directory.ENVIRONMENT).read_text())
    assert found["packages"].keys() == set(run_directory.PACKAGES)
    assert found["devices"] == ["cpu:cpu"] * 8


def test_a_partial_config_is_completed(tmp_path):
    (tmp_path / run_directory.CONFIG).write_text('{"steps": 3, "views": {"area": [0.5, 1.0]}}')
    assert run_directory.read_config(tmp_path) == Config.parse({"steps": 3, "views": {"area": (0.5, 1.0)}})


def test_what_is_no_run_directory_is_refused(tmp_path):
    assert refusal(tmp_path / "missing").endswith("missing is not a directory")
    assert refusal(tmp_path).endswith("is not a run directory: it has no config.json")
    (tmp_path / "notes.txt").write_text("someone else's")
    assert refusal(tmp_path).endswith("is not a run directory: it has no config.json")
    assert refusal(tmp_path / "notes.txt").endswith("notes.txt is not a directory")
    (tmp_path / run_directory.CONFIG).mkdir()
    assert refusal(tmp_path).endswith("is not a run directory: it has no config.json")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "config.json cannot be read: Expecting value: line 1 column 1 (char 0)"),
        (b'{"steps": 3,\n"tau":', "config.json cannot be read: Expecting value: line 2"),
        (b"\xff\xfe\x00", "config.json cannot be read: 'utf-8' codec can't decode"),
        (b"[1, 2]", "config.json must hold one JSON object, not a list"),
        (b"null", "config.json must hold one JSON object, not a NoneType"),
        (b'{"stepz": 3}', "config.json is not a config of byov_jax: config has no key stepz: did you mean"),
        (b'{"name": "some-package"}', "config.json is not a config of byov_jax: config has no key name"),
        (b'{"encoder": "vit"}', "config.json is not a config of byov_jax: config.encoder='vit' must be"),
    ],
)
def test_a_broken_config_is_refused(tmp_path, content, problem):
    (tmp_path / run_directory.CONFIG).write_bytes(content)
    assert problem in refusal(tmp_path)


def test_json_holds_arrays_and_numpy_numbers(tmp_path):
    file = tmp_path / "value.json"
    value = {"a": np.float32(0.5), "b": jnp.arange(3), "c": np.eye(2), "d": (1, None), "e": np.int64(7)}
    files.write_json(file, value)
    expected = {"a": 0.5, "b": [0, 1, 2], "c": [[1, 0], [0, 1]], "d": [1, None], "e": 7}
    assert json.loads(file.read_text()) == expected


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {"a": [np.float32("nan")]}, np.array([1.0, np.inf]), object(), {1, 2}, 1j],
    ids=["nan", "inf", "nan inside", "array", "object", "set", "complex"],
)
def test_what_json_cannot_hold_leaves_the_old_file_and_no_other(tmp_path, value):
    file = tmp_path / "value.json"
    files.write_json(file, {"old": 1})
    before = file.read_bytes()
    with pytest.raises((TypeError, ValueError), match="JSON"):
        files.write_json(file, value)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_arrays_come_back_as_they_were(tmp_path):
    file = tmp_path / "arrays.npz"
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "step": np.asarray(7),
        "b/c": np.array(["x"]),
    }
    files.write_npz(file, {"old": np.zeros(1)})
    files.write_npz(file, arrays)
    with np.load(file) as found:
        assert found.files == list(arrays)
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
    assert list(tmp_path.iterdir()) == [file]


def test_arrays_that_need_pickle_leave_the_old_file_and_no_other(tmp_path):
    file = tmp_path / "arrays.npz"
    files.write_npz(file, {"old": np.zeros(1)})
    before = file.read_bytes()
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        files.write_npz(file, {"a": np.ones(3), "b": np.array([None, "x"], object)})
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "value.json"
    files.write_json(file, {"old": 1})

    def half(path, text):
        path.write_bytes(text.encode()[: len(text) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(type(file), "write_text", half)
    with pytest.raises(OSError, match="no space left"):
        files.write_json(file, {"new": 2})
    monkeypatch.undo()
    assert json.loads(file.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [file]


DIGESTED = CONFIG.updated({"data": {"digest": "0123456789abcdef"}})


@pytest.mark.parametrize(
    "changes",
    [
        {"watchdog": 1.0, "save_every": 7, "keep": {"last": 9, "every": 5}},
        {"guard": {"patience": 3}},
        {"data": {"source": "elsewhere", "workers": 5, "on_error": "raise"}},
    ],
)
def test_what_cannot_change_a_result_may_differ(tmp_path, changes):
    run_directory.create(tmp_path, DIGESTED)
    assert run_directory.holds_run(tmp_path, DIGESTED.updated(changes))
    assert run_directory.identity(DIGESTED.updated(changes)) == run_directory.identity(DIGESTED)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tau": 0.5}, "tau is 0.9 there, 0.5 here; choose"),
        ({"guard": {"spike": 3.0}}, "guard.spike is 0.0 there, 3.0 here; choose"),
        ({"log_every": 7}, "log_every is 50 there, 7 here; choose"),
        ({"data": {"loader": "stream"}}, "data.loader is 'memory' there, 'stream' here"),
        (
            {"data": {"digest": "f" * 16}},
            "data.digest is '0123456789abcdef' there, 'ffffffffffffffff' here (the images or labels are not",
        ),
    ],
)
def test_what_can_may_not(tmp_path, changes, problem):
    run_directory.create(tmp_path, DIGESTED)
    with pytest.raises(RunError) as error:
        run_directory.holds_run(tmp_path, DIGESTED.updated(changes))
    assert problem in str(error.value)


def test_a_run_without_a_digest_is_known_by_the_place_of_its_data(tmp_path):
    run_directory.create(tmp_path, CONFIG)
    assert run_directory.holds_run(tmp_path, DIGESTED)
    moved = DIGESTED.updated({"data": {"source": "elsewhere"}})
    with pytest.raises(RunError, match=r"data\.source is 'fashion_mnist' there, 'elsewhere' here; choose"):
        run_directory.holds_run(tmp_path, moved)
