"""A config from the command line: --config=FILE[:variant], changed by any number of --config.KEY=VALUE."""

import ast
import difflib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byov_jax.training import build

PREFIX = "--config."


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments of other kinds, and `KEY=VALUE` for each --config.KEY=VALUE."""
    changes, others = [], []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith(PREFIX):
            others.append(argument)
        elif "=" in argument:
            changes.append(argument.removeprefix(PREFIX))
        else:
            changes.append(f"{argument.removeprefix(PREFIX)}={next(rest, '')}")
    return others, changes


def load_config(file: str, changes: Sequence[str] = ()) -> dict[str, Any]:
    """The complete config that `file` names, with the changes made; a ValueError says what is wrong.

    Args:
      file: a Python file with `get_config(variant)`, `:variant` after it if you like.
      changes: `KEY=VALUE`, the key with dots between its sections.
    """
    path, _, variant = file.partition(":")
    module = _module(Path(path))
    try:
        config = module.get_config(variant) if variant else module.get_config()
    except ValueError as error:
        raise ValueError(f"--config={file}: {error}") from None
    config = build.complete(config.to_dict() if hasattr(config, "to_dict") else config)
    for change in changes:
        key, _, text = change.partition("=")
        _change(config, key, text)
    return build.complete(config)


def baseline(file: str) -> str:
    """The same file, its variant BYOL: `byol`, or what the file's own `baseline(variant)` says."""
    path, _, variant = file.partition(":")
    named = getattr(_module(Path(path)), "baseline", None)
    return f"{path}:{named(variant) if named and variant else 'byol'}"


def _module(path: Path) -> Any:
    if not path.is_file():
        folder = path if path.is_dir() else path.parent
        there = [str(file) for file in sorted(folder.glob("*.py")) if "def get_config(" in file.read_text()]
        raise ValueError(
            f"--config={path} is not a file; there are {', '.join(there) or 'no configs beside it'}"
        )
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--config={path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ValueError(f"--config={path} has no get_config(variant)")
    return module


def _change(config: dict[str, Any], key: str, text: str) -> None:
    """Sets one value, read as the type that it has so far."""
    *sections, name = key.split(".")
    place = config
    for section in sections:
        inner = place.get(section)
        if not isinstance(inner, dict):
            raise ValueError(f"config has no section {section}: {_nearest(section, _sections(config))}")
        place = inner
    if name not in place and ".".join(sections) not in build.OPEN:
        build.complete(_nested([*sections, name], text))  # knows what was meant
    before = place.get(name)
    if isinstance(before, dict):
        raise ValueError(f"config.{key} is a section: set one of {', '.join(f'{key}.{k}' for k in before)}")
    place[name] = text if isinstance(before, str) else _value(text)


def _value(text: str) -> Any:
    """A number, truth value, None or tuple if it reads as one, else the text; `validate` checks the type."""
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return tuple(value) if isinstance(value, list) else value


def _nested(keys: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return value


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"


def _sections(config: dict[str, Any]) -> list[str]:
    return [key for key, value in config.items() if isinstance(value, dict)]
