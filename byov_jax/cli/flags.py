"""Flags that several commands share: --config, --config.KEY=VALUE, and those of several processes."""

import argparse
import ast
import importlib.util
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from byov_jax import recipes
from byov_jax.distributed import cluster
from byov_jax.errors import ConfigError, RunError
from byov_jax.training import schema
from byov_jax.training.config import Config

PREFIX = "--config."

CONFIG_HELP = f"a recipe ({', '.join(recipes.NAMES)}) or a Python file with get_config(variant)"


def split_config_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off --config.KEY=VALUE; returns the other arguments, and `KEY=VALUE` for each."""
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


def load_config(name: str, changes: Sequence[str] = ()) -> Config:
    """Load a config and apply changes; a ConfigError says what is wrong.

    Args:
      name: a recipe such as `quickstart`, or a Python file with `get_config(variant)`; `:VARIANT` may follow.
      changes: `KEY=VALUE`, with dots between sections.
    """
    place, _, variant = name.partition(":")
    get_config = _module(place).get_config
    try:
        values = get_config(variant) if variant else get_config()
    except ValueError as error:
        raise ConfigError(f"--config={name}: {error}") from None
    config = schema.validated(Config, values).to_dict()  # what depends on several keys is checked last
    for change in changes:
        key, _, text = change.partition("=")
        _set(config, key, text)
    return Config.parse(config)


def key_table() -> str:
    """Format all keys of a config for `--help`: allowed values, default, meaning."""
    rows = []
    for key in schema.keys(Config):
        default = f"; default {key.default}" if key.default else ""
        rows += [f"  {key.name}", f"      {key.meaning} ({key.allowed}{default})"]
    return "\n".join(rows)


def baseline(name: str) -> str:
    """Return the BYOL variant of a config: `byol`, or what the file's own `baseline(variant)` returns."""
    place, _, variant = name.partition(":")
    named = getattr(_module(place), "baseline", None)
    return f"{place}:{named(variant) if named and variant else 'byol'}"


def _module(place: str) -> Any:
    if place in recipes.NAMES:
        return import_module(f"byov_jax.recipes.{place}")
    path = Path(place)
    if not path.is_file():
        if path.suffix != ".py" and not path.is_dir():
            raise ConfigError(
                f"--config={place}: {schema.nearest(place, recipes.NAMES)} (or name a Python file, FILE.py)"
            )
        folder = path if path.is_dir() else path.parent
        files = [str(file) for file in sorted(folder.glob("*.py")) if "get_config" in file.read_text()]
        raise ConfigError(
            f"--config={place} is not a file; there are {', '.join(files) or 'no configs beside it'}"
        )
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--config={place} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ConfigError(f"--config={place} has no get_config(variant)")
    return module


def _set(config: dict[str, Any], key: str, text: str) -> None:
    """Set one value, parsed by the type it has now; the schema refuses unknown keys later."""
    *sections, name = key.split(".")
    place = config
    for section in sections:
        inner = place.get(section)
        if not isinstance(inner, dict):
            known = [name for name, value in config.items() if isinstance(value, dict)]
            raise ConfigError(f"config has no section {section}: {schema.nearest(section, known)}")
        place = inner
    before = place.get(name)
    if isinstance(before, dict):
        keys = ", ".join(f"{key}.{inner}" for inner in before)
        raise ConfigError(f"config.{key} is a section: set one of {keys}")
    place[name] = text if isinstance(before, str) else _value(text)


def _value(text: str) -> Any:
    """Parse a number, truth value, None or tuple; anything else is a string."""
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to the parser of a command that trains."""
    group = parser.add_argument_group(
        "several processes", "detected under Slurm, Open MPI, Kubernetes and on TPU pods"
    )
    add = group.add_argument
    add("--distributed", choices=("auto", "on", "off"), default="auto", help="join other processes (auto)")
    add("--coordinator", metavar="HOST:PORT", help="address of process 0, if processes are started by hand")
    add("--processes", type=int, metavar="N", help="number of processes")
    add("--process", type=int, metavar="I", help="index of this process, from 0")
    add(
        "--heartbeat",
        type=int,
        default=100,
        metavar="SECONDS",
        help="a process that does not answer for this time counts as lost, and the others exit (100)",
    )


def initialize_cluster(arguments: argparse.Namespace) -> None:
    """Set up JAX as the flags say, before it initializes its devices."""
    if arguments.heartbeat < 1:
        raise RunError(f"--heartbeat={arguments.heartbeat} must be at least 1 second")
    explicit = (arguments.coordinator, arguments.processes, arguments.process)
    if any(value is not None for value in explicit):
        if any(value is None for value in explicit):
            raise RunError(
                "--coordinator=HOST:PORT, --processes=N and --process=I go together: give all three"
            )
        if not 0 <= arguments.process < arguments.processes:
            raise RunError(f"--process={arguments.process} must be from 0 to {arguments.processes - 1}")
    cluster.initialize(
        arguments.distributed,
        coordinator=arguments.coordinator,
        processes=arguments.processes,
        process=arguments.process,
        heartbeat=arguments.heartbeat,
    )
