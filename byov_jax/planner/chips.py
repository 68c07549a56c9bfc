"""Peak figures of accelerators, per JAX device: a chip, or one of its cores.

TPUs: Google's published figures per chip (cloud.google.com/tpu/docs, the page of each version): bf16 FLOP/s,
HBM bandwidth, half the bidirectional bandwidth of the links between chips, and vCPUs of a host with four
chips. `memory` is what libtpu lets a program use.
GPUs: NVIDIA's published figures: dense bf16 (float16 on V100), NVLink or PCIe in one direction.
"""

import re
from typing import NamedTuple


class Chip(NamedTuple):
    """Peak figures of one device.

    Attributes:
      name: as in the name of a topology, or the device's `device_kind`.
      flops: of bfloat16 matrix products, per second.
      bandwidth: of main memory, bytes per second.
      memory: bytes of main memory that a program may use.
      link: bytes per second received from other devices.
      host_cores: vCPUs of the host of the devices; None if unknown.
      shapes: available slices, the smallest first.
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


SHAPES_2D = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
SHAPES_3D = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")


_TPU_CHIPS = {  # TFLOP/s, GB/s of memory, GiB per device, GB/s of links, vCPUs, shapes, devices per chip
    "v5e": (197, 819, 15.75, 400, 112, SHAPES_2D, 1),
    "v5p": (459, 2765, 95.73, 1200, 208, SHAPES_3D, 1),
    "v6e": (918, 1638, 31.24, 800, 180, SHAPES_2D, 1),
    "tpu7x": (2307, 7380, 94.74, 1200, 224, SHAPES_3D, 2),
}
TPUS = {
    name: Chip(
        name,
        flops=tflops * 1e12 / devices,
        bandwidth=gbytes * 1e9 / devices,
        memory=int(gib * 2**30),
        link=links * 1e9 / 2 / devices,
        host_cores=cores,
        shapes=shapes,
    )
    for name, (tflops, gbytes, gib, links, cores, shapes, devices) in _TPU_CHIPS.items()
}

GPUS = {  # part of the device kind: TFLOP/s, GB/s of memory, GB/s of links
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


def gpu(device_kind: str, memory: int) -> Chip | None:
    """Return the GPU of this kind, with `memory` usable bytes; None if it is not in the table."""
    for part, (tflops, gbytes, links) in GPUS.items():
        if re.search(rf"\b{part}\b", device_kind):
            source = "NVIDIA's published figures"
            return Chip(device_kind, tflops * 1e12, gbytes * 1e9, memory, links * 1e9, source=source)
    return None
