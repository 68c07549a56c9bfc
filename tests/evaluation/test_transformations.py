"""Every public function under jit, vmap, grad, 16 and 64 bits, and the table of it in the documentation."""

import re

import pytest

from tools import transformations_table

KEEP_THEIR_DTYPE = re.compile(r"posterior\.|predictive\.predict|pruning\.|shifts\.")


def test_every_public_function_has_an_example():
    public = set(transformations_table.public_functions())
    assert public == set(transformations_table.EXAMPLES) | set(transformations_table.ON_THE_HOST)
    assert {"metrics.nll", "metrics.Calibration.compute", "pruning.sweep", "shifts.rotate"} < public


@pytest.mark.parametrize("name", transformations_table.EXAMPLES)
def test_it_transforms_as_the_documentation_says(name):
    row = transformations_table.measure(name)
    assert row.jit
    assert row.vmap
    assert row.gradient in ("finite", "zero", "none")
    assert row.programs[1] == 0
    if not KEEP_THEIR_DTYPE.match(name):
        assert (row.bfloat16, row.float64) == ("float32", "float64")
    if name.startswith("metrics."):
        assert row.programs[0] <= 2
    if name.startswith("posterior."):
        assert row.programs[0] == 1
    line = transformations_table.line(name, row)
    documented = transformations_table.PAGE.read_text().splitlines()
    assert line in documented, "renew the table with python -m tools.transformations_table"


def test_the_table_has_every_function():
    documented = re.findall(r"^\| `([\w.]+)` \|", transformations_table.PAGE.read_text(), re.MULTILINE)
    assert documented == list(transformations_table.public_functions())
