"""The stored parts of an evaluation: complete ones come back, others are measured again."""

import json

import numpy as np
import pytest

from byov_jax.evaluation.suite.run import RunStorage

SETTINGS = {"seed": 0}


def test_a_part_comes_back_as_it_was_written(tmp_path):
    storage = RunStorage(tmp_path)
    storage.write("probe", SETTINGS, {"images": 3}, {"x": np.arange(3)})
    assert storage.read("probe") == {"settings": SETTINGS, "numbers": {"images": 3}}
    np.testing.assert_array_equal(storage.arrays("probe")["x"], np.arange(3))


def test_shifts_of_0_1_have_their_present_names(tmp_path):
    storage = RunStorage(tmp_path)
    storage.write("shift", SETTINGS, {"images": 3, "solarise": {"1": {}}, "posterise": {"1": {}}}, {})
    assert storage.read("shift")["numbers"] == {"images": 3, "solarize": {"1": {}}, "posterize": {"1": {}}}


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"settings": {}}', '{"settings": {}, "numbers": [1]}'])
def test_an_incomplete_part_is_none(tmp_path, content):
    storage = RunStorage(tmp_path)
    assert storage.read("probe") is None
    storage.write("probe", SETTINGS, {}, {})
    (tmp_path / "evaluation" / "probe.json").write_text(content)
    assert storage.read("probe") is None


def test_numbers_without_their_arrays_are_none(tmp_path):
    storage = RunStorage(tmp_path)
    storage.write("probe", SETTINGS, {"images": 3}, {})
    (tmp_path / "evaluation" / "probe.npz").unlink()
    assert storage.read("probe") is None
    assert json.loads((tmp_path / "evaluation" / "probe.json").read_text())["settings"] == SETTINGS
