"""Write the table of all config keys in docs/training.md, from the schema of the config.

Run it after a change of the schema:

    python -m tools.config_table
"""

import sys
from pathlib import Path

from byov_jax.training import schema
from byov_jax.training.config import Config

PAGE = Path(__file__).parents[1] / "docs" / "training.md"
BEGIN = "<!-- config keys, written by python -m tools.config_table -->"
END = "<!-- end of config keys -->"


def main() -> int:
    """Rewrite the table and return the exit code."""
    PAGE.write_text(updated(PAGE.read_text()))
    print(PAGE)
    return 0


def updated(page: str) -> str:
    """Return the page with the current table between the two comments."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def table() -> str:
    """Return all keys as a Markdown table."""
    rows = [("key", "default", "allowed", "meaning"), ("---", "---", "---", "---")]
    for key in schema.keys(Config):
        name = f"`{key.name}`" + (" *" if key.may_change else "")
        default = f"`{key.default}`" if key.default else ""
        rows.append((name, default, key.allowed, key.meaning.replace("|", "\\|")))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
