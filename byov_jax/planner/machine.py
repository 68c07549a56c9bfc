"""Machines to plan for: a TPU slice, which need not exist, or the devices of this machine."""

import importlib.util
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from byov_jax.planner import chips
from byov_jax.planner.chips import Chip

LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # do not look for the metadata server of a cloud
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # no device is used, so several plans can run at once
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # any value silences a warning; the topology's name decides
}


class Machine(NamedTuple):
    """Devices of one kind.

    Attributes:
      name: of the topology; `local` for this machine.
      chip: peak figures of each device.
      devices: all of them; those of a topology can only be compiled for.
    """

    name: str
    chip: Chip
    devices: Sequence[jax.Device]

    @property
    def hosts(self) -> int:
        """Number of hosts that the devices belong to."""
        return len({device.process_index for device in self.devices})


def use_cpu() -> None:
    """Make JAX use the CPU; call before it starts, since with libtpu installed it looks for a TPU."""
    for key, value in LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    os.environ.pop("XLA_FLAGS", None)  # libtpu ends the process at flags of other platforms
    jax.config.update("jax_platforms", getattr(jax.config, "jax_platforms", None) or "cpu")


def tpu(name: str) -> Machine:
    """Return the TPU slice `name`, such as `v5e:4x4`; a ValueError of one line lists the valid names."""
    kind, _, shape = name.partition(":")
    if kind not in chips.TPUS or not re.fullmatch(r"\d+x\d+(x\d+)?", shape):
        known = "; ".join(f"{chip.name}:{{{','.join(chip.shapes)}}}" for chip in chips.TPUS.values())
        raise ValueError(f"--topology={name}: expected CHIP:SHAPE, one of {known}")
    chip = chips.TPUS[kind]
    _require_libtpu()
    try:
        devices: Any = topologies.get_topology_desc(name, platform="tpu").devices
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"--topology={name}: {kind} comes as {', '.join(chip.shapes)} ({reason[:200]})"
        ) from None
    return Machine(name, chip, devices)


def local(dtype: str) -> Machine:
    """Return the devices of this machine, with published figures if the table has them, else measured ones.

    Args:
      dtype: compute type of the step, used to measure.
    """
    devices = jax.devices()
    first, memory = jax.local_devices()[0], _usable_memory()
    chip = chips.gpu(first.device_kind, memory) if first.platform == "gpu" else None
    return Machine("local", chip or _measured(first, memory, dtype), devices)


def first_devices(machine: Machine, count: int) -> Machine:
    """Return the first `count` devices of a local machine; on a CPU they share all of its cores."""
    chip = machine.chip
    if machine.devices[0].platform == "cpu":
        share = len(machine.devices) / count
        chip = chip._replace(
            flops=chip.flops * share,
            bandwidth=chip.bandwidth * share,
            memory=int(chip.memory * share),
            link=chip.link * share,
        )
    return Machine(f"{count} of {machine.name}", chip, machine.devices[:count])


def _require_libtpu() -> None:
    path = os.environ.get("TPU_LIBRARY_PATH")
    if path and not Path(path).is_file():
        raise ValueError(f"TPU_LIBRARY_PATH={path} is not a file: unset it, or set it to a libtpu.so")
    if not path and importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            "planning for a TPU needs libtpu, its compiler: pip install 'byov-jax[plan]', "
            "or set TPU_LIBRARY_PATH to a libtpu.so; without --topology the plan is for this machine"
        )


def _usable_memory() -> int:
    """Return the bytes that a program may use on a local device; devices of a CPU share the machine's."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()


def _measured(device: jax.Device, memory: int, dtype: str, side: int = 1024) -> Chip:
    """Measure a device with a matrix product and a copy; devices of a CPU share the result."""
    sharing = jax.local_device_count() if device.platform == "cpu" else 1
    square = jax.device_put(jnp.full((side, side), 1 / side, dtype), device)
    long = jax.device_put(jnp.zeros(2**24, jnp.float32), device)
    moved_bytes = 2 * long.nbytes
    product_seconds = _best_seconds(lambda x: x @ x, square)
    bandwidth = moved_bytes / _best_seconds(lambda x: x + 1, long) / sharing
    return Chip(
        device.device_kind,
        flops=2 * side**3 / product_seconds / sharing,
        bandwidth=bandwidth,
        memory=memory,
        link=bandwidth,
        host_cores=os.cpu_count(),
        source="measured on this machine",
    )


def _best_seconds(function: Callable[[jax.Array], jax.Array], x: jax.Array, repeats: int = 10) -> float:
    """Return the best time of `function` applied to its own result, with donated memory as in training."""
    compiled = jax.jit(function, donate_argnums=0)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        x = jax.block_until_ready(compiled(x))
        times.append(time.perf_counter() - start)
    return min(times)
