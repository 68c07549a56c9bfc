"""Configs that differ from a given one in a few keys, on the same machine or on another slice of its kind."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from byov_jax.planner import machine as machines
from byov_jax.planner.machine import Machine
from byov_jax.planner.step import Step

Compile = Callable[[dict[str, Any], Machine], Step]
BATCHES = (1 / 4, 1 / 2, 1, 2, 4)
"""What a comparison of batch sizes multiplies the config's by."""


class Change(NamedTuple):
    """Values by dotted key, and where to run."""

    values: dict[str, Any]
    machine: Machine

    def __str__(self) -> str:
        """As one would type it."""
        where = [f"--topology={self.machine.name}"] if ":" in self.machine.name else []
        return " ".join([f"--config.{key}={value}" for key, value in self.values.items()] + where)

    def made(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config with these values."""
        config = copy.deepcopy(config)
        for key, value in self.values.items():
            *sections, name = key.split(".")
            place = config
            for section in sections:
                place = place[section]
            place[name] = value
        return config


def counterpart(config: dict[str, Any]) -> dict[str, Any] | None:
    """The deterministic method with the same network; None if the config's own is deterministic."""
    deterministic = {"byov": "byol", "supervised_bbb": "supervised"}.get(config["method"])
    return None if deterministic is None else config | {"method": deterministic}


def remedy(config: dict[str, Any], machine: Machine, compile_step: Compile) -> tuple[Change, Step] | None:
    """The first change that makes a step fit, the gentlest first; None if none does."""
    for change in remedies(config, machine):
        step = compile_step(change.made(config), change.machine)
        if step.fits:
            return change, step
    return None


def remedies(config: dict[str, Any], machine: Machine) -> Iterator[Change]:
    """First what leaves the results as they are, then smaller parts, then a smaller batch, then more chips.

    Dividing the state costs communication, recomputing activations costs time, micro-batches change the
    statistics of batch norm, and another batch size is another recipe.
    """
    count = len(machine.devices)
    divided: dict[str, Any] = {}
    if count > 1 and config["parallel"]["mode"] in ("plain", "pmap"):
        divided = {"parallel.mode": "sharded"}
        yield Change(divided, machine)
    exact = divided
    if config["encoder"]["name"] == "vit" and not config["encoder"].get("remat"):
        exact = divided | {"encoder.remat": True}
        yield Change(exact, machine)
    parts = [p for p in _doublings(2 * config["accumulate"]) if config["batch_size"] % (p * count) == 0]
    for base in (divided, exact) if exact != divided else (exact,):
        yield from (Change(base | {"accumulate": part}, machine) for part in parts)
    for divisor in _doublings(2):
        if config["batch_size"] % (divisor * count * config["accumulate"]):
            break
        yield Change(exact | _batch(config, config["batch_size"] // divisor), machine)
    for other in slices(machine):
        if len(other.devices) > count and config["batch_size"] % len(other.devices) == 0:
            yield Change(exact, other)


def _doublings(first: int) -> Iterator[int]:
    return (first * 2**power for power in range(12))


def variants(kind: str, config: dict[str, Any], machine: Machine) -> list[Change]:
    """What to compare: batch sizes, recomputing activations or not, or slices of the same chip."""
    if kind == "batch":
        sizes = [config["batch_size"] * times for times in BATCHES]
        divisor = len(machine.devices) * config["accumulate"]
        return [Change(_batch(config, int(size)), machine) for size in sizes if size and size % divisor == 0]
    if kind == "remat":
        if config["encoder"]["name"] != "vit":
            raise ValueError(f"--compare=remat: encoder.name={config['encoder']['name']!r} cannot recompute")
        return [Change({"encoder.remat": value}, machine) for value in (True, False)]
    divisor = config["accumulate"]
    return [
        Change({}, other)
        for other in slices(machine)
        if config["batch_size"] % (len(other.devices) * divisor) == 0
    ]


def _batch(config: dict[str, Any], size: int) -> dict[str, Any]:
    """Another batch size for as many epochs."""
    times = config["batch_size"] / size
    lengths = {
        "steps": config["steps"],
        "optimizer.warmup": config["optimizer"]["warmup"],
        "beta_steps": config["beta_steps"],
    }
    return {"batch_size": size} | {key: round(length * times) for key, length in lengths.items() if length}


def slices(machine: Machine) -> Iterator[Machine]:
    """Machines of the same chip, the smallest first: slices of a TPU, or some of the local devices."""
    if machine.name == "local":
        count = 1
        while count < len(machine.devices):
            yield machines.part(machine, count)
            count *= 2
        yield machine
    else:
        yield from (machines.tpu(f"{machine.chip.name}:{shape}") for shape in machine.chip.shapes)
