"""Changes of a config or of the number of devices: those that make a step fit, and those to compare."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from byov_jax.methods import TRAITS
from byov_jax.planner import machine as machines
from byov_jax.planner.machine import Machine
from byov_jax.planner.step import Step
from byov_jax.training.config import Config

Compile = Callable[[Config, Machine], Step]
COMPARISONS = ("batch", "remat", "mesh")
BATCH_FACTORS = (1 / 4, 1 / 2, 1, 2, 4)
"""Multiples of the config's batch size that are compared."""


class Change(NamedTuple):
    """Values by dotted key, and the machine to run on."""

    values: dict[str, Any]
    machine: Machine

    def __str__(self) -> str:
        """Return the change as command-line arguments."""
        topology = [f"--topology={self.machine.name}"] if ":" in self.machine.name else []
        return " ".join([f"--config.{key}={value}" for key, value in self.values.items()] + topology)

    def apply(self, config: Config) -> Config:
        """Return the config with these values."""
        for key, value in self.values.items():
            section, _, name = key.rpartition(".")
            if section:
                name, value = section, getattr(config, section).model_copy(update={name: value})
            config = config.model_copy(update={name: value})
        return config


def deterministic_counterpart(config: Config) -> Config | None:
    """Return the config of the deterministic method with the same network; None if it already is that."""
    if not config.traits.bayesian:
        return None
    traits = config.traits._replace(bayesian=False)
    method = next(name for name in TRAITS if TRAITS[name] == traits)
    return config.model_copy(update={"method": method})


def smallest_that_fits(config: Config, machine: Machine, compile_step: Compile) -> tuple[Change, Step] | None:
    """Return the first of `candidates` whose step fits, with that step; None if none does."""
    for change in candidates(config, machine):
        step = compile_step(change.apply(config), change.machine)
        if step.fits:
            return change, step
    return None


def candidates(config: Config, machine: Machine) -> Iterator[Change]:
    """Yield changes that save memory: exact ones, then micro-batches, a smaller batch, and more chips.

    Sharding the state costs communication and rematerialisation costs time; micro-batches change the
    statistics of batch norm, and another batch size is another recipe.
    """
    count = len(machine.devices)
    sharded: dict[str, Any] = {}
    if count > 1 and config.parallel.mode in ("plain", "pmap"):
        sharded = {"parallel.mode": "sharded"}
        yield Change(sharded, machine)
    exact = sharded
    if config.encoder.name == "vit" and not config.encoder.remat:
        exact = sharded | {"encoder.remat": True}
        yield Change(exact, machine)
    for base in (sharded, exact) if exact != sharded else (exact,):
        for parts in _powers_of_two(2 * config.accumulate):
            if config.batch_size % (parts * count) == 0:
                yield Change(base | {"accumulate": parts}, machine)
    for divisor in _powers_of_two(2):
        if config.batch_size % (divisor * count * config.accumulate):
            break
        yield Change(exact | _batch_values(config, config.batch_size // divisor), machine)
    for larger in slices(machine):
        if len(larger.devices) > count and config.batch_size % len(larger.devices) == 0:
            yield Change(exact, larger)


def comparison(kind: str, config: Config, machine: Machine) -> list[Change]:
    """Return the changes to compare: batch sizes, with and without remat, or slices of the same chip."""
    if kind == "batch":
        sizes = [config.batch_size * factor for factor in BATCH_FACTORS]
        divisor = len(machine.devices) * config.accumulate
        valid = [int(size) for size in sizes if size and size % divisor == 0]
        return [Change(_batch_values(config, size), machine) for size in valid]
    if kind == "remat":
        if config.encoder.name != "vit":
            raise ValueError(f"--compare=remat: encoder.name={config.encoder.name!r} cannot recompute")
        return [Change({"encoder.remat": remat}, machine) for remat in (True, False)]
    others = [Change({}, other) for other in slices(machine)]
    return [c for c in others if config.batch_size % (len(c.machine.devices) * config.accumulate) == 0]


def slices(machine: Machine) -> Iterator[Machine]:
    """Yield machines with the same chip, the smallest first: TPU slices, or some of the local devices."""
    if machine.name != "local":
        yield from (machines.tpu(f"{machine.chip.name}:{shape}") for shape in machine.chip.shapes)
        return
    count = 1
    while count < len(machine.devices):
        yield machines.first_devices(machine, count)
        count *= 2
    yield machine


def _powers_of_two(first: int) -> Iterator[int]:
    return (first * 2**power for power in range(12))


def _batch_values(config: Config, size: int) -> dict[str, Any]:
    """Return the values for another batch size and the same number of epochs."""
    factor = config.batch_size / size
    lengths = {
        "steps": config.steps,
        "optimizer.warmup": config.optimizer.warmup,
        "beta_steps": config.beta_steps,
    }
    return {"batch_size": size} | {key: round(length * factor) for key, length in lengths.items() if length}
