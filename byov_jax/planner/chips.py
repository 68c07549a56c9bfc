"""Peak figures of accelerators, per device: what JAX calls a device is a chip, or one of its cores.

TPUs: Google's published figures per chip (cloud.google.com/tpu/docs, the page of each version): bf16 FLOP/s,
HBM bandwidth, and the bidirectional bandwidth of the links between chips, of which one direction counts here;
vCPUs of a host with four chips. `memory` is what libtpu lets a program use.
GPUs: NVIDIA's published figures, dense bf16 (float16 on V100), NVLink or PCIe in one direction.
"""

import re
from typing import NamedTuple

GIB = 2**30


class Chip(NamedTuple):
    """What one device can do at best.

    Attributes:
      name: as in the name of a topology, or as the device calls itself.
      flops: operations per second of matrix products in bfloat16.
      bandwidth: bytes per second to and from main memory.
      memory: bytes of it that a program may use.
      link: bytes per second received from other devices.
      host_cores: of the machine that feeds the devices; None if not known.
      shapes: slices that can be had, the smallest first.
      source: where the figures come from.
    """

    name: str
    flops: float
    bandwidth: float
    memory: int
    link: float
    host_cores: int | None = None
    shapes: tuple[str, ...] = ()
    source: str = "Google's published figures"


FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBIC = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")


def _tpu(
    name: str,
    *,
    tera: float,
    giga: float,
    usable: float,
    links: float,
    cores: int,
    shapes: tuple[str, ...],
    devices: int = 1,
) -> Chip:
    """From the figures of a chip (`usable` GiB of a device), which libtpu shows as one or two devices."""
    return Chip(
        name,
        flops=tera * 1e12 / devices,
        bandwidth=giga * 1e9 / devices,
        memory=int(usable * GIB),
        link=links * 1e9 / 2 / devices,
        host_cores=cores,
        shapes=shapes,
    )


TPUS = {
    chip.name: chip
    for chip in (
        _tpu("v5e", tera=197, giga=819, usable=15.75, links=400, cores=112, shapes=FLAT),
        _tpu("v5p", tera=459, giga=2765, usable=95.73, links=1200, cores=208, shapes=CUBIC),
        _tpu("v6e", tera=918, giga=1638, usable=31.24, links=800, cores=180, shapes=FLAT),
        _tpu("tpu7x", tera=2307, giga=7380, usable=94.74, links=1200, cores=224, shapes=CUBIC, devices=2),
    )
}

GPUS = {  # a part of the name: TFLOP/s, GB/s, GB/s of links
    "H200": (989, 4800, 450),
    "H100 PCIe": (756, 2000, 64),
    "H100": (989, 3350, 450),
    "A100-SXM4-40GB": (312, 1555, 300),
    "A100": (312, 2039, 300),
    "L40S": (362, 864, 32),
    "L4": (121, 300, 32),
    "A10": (125, 600, 32),
    "V100": (125, 900, 150),
}


def gpu(kind: str, memory: int) -> Chip | None:
    """The GPU that calls itself `kind`, with as much memory as it says; None if it is not in the table."""
    for part, (tera, giga, links) in GPUS.items():
        if re.search(rf"\b{part}\b", kind):
            return Chip(
                kind, tera * 1e12, giga * 1e9, memory, links * 1e9, source="NVIDIA's published figures"
            )
    return None
