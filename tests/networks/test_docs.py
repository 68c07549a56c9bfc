"""The examples of docs/networks.md run."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"


def test_examples_run_in_order():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 7
    namespace = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
