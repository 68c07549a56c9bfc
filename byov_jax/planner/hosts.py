"""How fast a host makes the crops that a step eats: measured on this machine, one core at a time."""

import io
import time

import numpy as np
from PIL import Image

from byov_jax.data.loading import crops

HEIGHT, WIDTH, QUALITY = 375, 500, 95
"""Of a typical ImageNet photograph, about 100 kB as JPEG."""


def decode_rate(size: int, count: int, *, seconds: float = 1.0) -> float:
    """Images per second that one core reads from memory, decodes and crops.

    Args:
      size: side of the crops.
      count: crops of each image.
      seconds: how long to measure.
    """
    images = [photograph(seed) for seed in range(4)]
    crops.random_crops(images[0], crops.random_bits(0, 0, 0, count), size)
    start, made = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        crops.random_crops(images[made % len(images)], crops.random_bits(0, 0, made, count), size)
        made += 1
    return made / (time.perf_counter() - start)


def photograph(seed: int) -> bytes:
    """A JPEG of noise whose amplitude falls with the frequency, as in photographs."""
    rng = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(HEIGHT)[:, None], np.fft.fftfreq(WIDTH)[None]
    amplitude = 1 / np.maximum(np.hypot(rows, columns), 1 / WIDTH)
    noise = np.fft.fft2(rng.standard_normal((3, HEIGHT, WIDTH)))
    planes = np.fft.ifft2(noise * amplitude[None]).real
    pixels = np.clip(128 + 50 * planes / planes.std(), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(np.moveaxis(pixels, 0, -1)).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
