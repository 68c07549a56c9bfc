"""Measure how many images per second one core of this machine decodes and crops."""

import io
import time

import numpy as np
from PIL import Image

from byov_jax.data.loading import crops

HEIGHT, WIDTH, QUALITY = 375, 500, 95
"""Of a typical ImageNet photograph, about 100 kB as JPEG."""


def decode_rate(size: int, count: int, *, seconds: float = 1.0) -> float:
    """Return the images per second that one core decodes from memory and crops.

    Args:
      size: side of the crops.
      count: crops of each image.
      seconds: how long to measure.
    """
    images = [synthetic_photograph(seed) for seed in range(4)]
    crops.random_crops(images[0], crops.random_bits(0, 0, 0, count), size)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        crops.random_crops(images[done % len(images)], crops.random_bits(0, 0, done, count), size)
        done += 1
    return done / (time.perf_counter() - start)


def synthetic_photograph(seed: int) -> bytes:
    """Return a JPEG of noise with amplitude 1 / frequency, the spectrum of photographs."""
    rng = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(HEIGHT)[:, None], np.fft.fftfreq(WIDTH)[None]
    amplitude = 1 / np.maximum(np.hypot(rows, columns), 1 / WIDTH)
    noise = np.fft.fft2(rng.standard_normal((3, HEIGHT, WIDTH)))
    planes = np.fft.ifft2(noise * amplitude[None]).real
    pixels = np.clip(128 + 50 * planes / planes.std(), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(np.moveaxis(pixels, 0, -1)).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
