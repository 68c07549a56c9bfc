"""Where a step is going to run: a TPU slice that need not be there, or the devices of this machine."""

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

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # do not look for the metadata server of a cloud
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # no device is taken, so plans may be made side by side
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # any: it only silences a warning, the topology's name decides
}


class Machine(NamedTuple):
    """Devices of one kind.

    Attributes:
      name: of the topology, `local` for this machine.
      chip: what each device can do.
      devices: all of them; those of a topology can be compiled for, and no more.
      hosts: machines that feed them.
    """

    name: str
    chip: Chip
    devices: Sequence[jax.Device]
    hosts: int


def keep_off_accelerators() -> None:
    """Before JAX starts: with libtpu installed it would look for a TPU, which planning does not need."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    os.environ.pop("XLA_FLAGS", None)  # flags for other platforms, at which libtpu would end the process
    jax.config.update("jax_platforms", getattr(jax.config, "jax_platforms", None) or "cpu")


def tpu(name: str) -> Machine:
    """The TPU slice `name`, such as `v5e:4x4`; a ValueError of one line lists what there is."""
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
    return Machine(name, chip, devices, len({device.process_index for device in devices}))


def _require_libtpu() -> None:
    path = os.environ.get("TPU_LIBRARY_PATH")
    if path and not Path(path).is_file():
        raise ValueError(f"TPU_LIBRARY_PATH={path} is not a file: unset it, or name a libtpu.so")
    if not path and importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            "planning for a TPU needs libtpu, its compiler: pip install 'byov-jax[plan]', "
            "or set TPU_LIBRARY_PATH to a libtpu.so; without --topology the plan is for this machine"
        )


def local(dtype: str) -> Machine:
    """The devices of this machine, with published figures if they are in the table, else measured ones.

    Args:
      dtype: what the step computes in, to measure with.
    """
    devices = jax.devices()
    first, memory = jax.local_devices()[0], _memory()
    chip = chips.gpu(first.device_kind, memory) if first.platform == "gpu" else None
    return Machine("local", chip or _measured(first, memory, dtype), devices, jax.process_count())


def part(machine: Machine, count: int) -> Machine:
    """The first `count` devices of this machine; those of a CPU get its cores for themselves."""
    chip = machine.chip
    if machine.devices[0].platform == "cpu":
        share = len(machine.devices) / count
        chip = chip._replace(
            flops=chip.flops * share,
            bandwidth=chip.bandwidth * share,
            memory=int(chip.memory * share),
            link=chip.link * share,
        )
    return Machine(f"{count} of {machine.name}", chip, machine.devices[:count], machine.hosts)


def _memory() -> int:
    """Bytes that a program may use on a local device; the devices of a CPU share those of the machine."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()


def _measured(device: jax.Device, memory: int, dtype: str, side: int = 1024) -> Chip:
    """Times a matrix product and a copy, the best of a few."""
    shared = jax.local_device_count() if device.platform == "cpu" else 1
    square = jax.device_put(jnp.full((side, side), 1 / side, dtype), device)
    long = jax.device_put(jnp.zeros(2**24, jnp.float32), device)
    moved = 2 * long.nbytes
    product = _seconds(lambda x: x @ x, square)
    bandwidth = moved / _seconds(lambda x: x + 1, long) / shared
    return Chip(
        device.device_kind,
        flops=2 * side**3 / product / shared,
        bandwidth=bandwidth,
        memory=memory,
        link=bandwidth,
        host_cores=os.cpu_count(),
        source="measured on this machine",
    )


def _seconds(function: Callable[[jax.Array], jax.Array], x: jax.Array, repeats: int = 10) -> float:
    """The best time of `function` on its own result; memory is reused, as in a training."""
    compiled = jax.jit(function, donate_argnums=0)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        x = jax.block_until_ready(compiled(x))
        times.append(time.perf_counter() - start)
    return min(times)
