"""Measure the data pipeline: crops relative to bare decoding, throughput, scaling and memory.

    python -m benchmarks.data [--source=FOLDER] [--repeats=15] [--batches=2000] [--json=FILE]

Without a source it generates JPEGs like those of ImageNet: 500x375 pixels, about 110 kB. Each repeat decodes
the same files from memory (simplejpeg, full size) and makes one and two random crops of 224 pixels from them.
Times are CPU times of one thread, and a ratio is the median over adjacent runs, so that other load on the
machine matters little. Then the pipeline reads the files from disk, with two crops each: in its default
setting with several numbers of workers, and for scaling with 1, 2, 4 ... workers of one thread each, up to
the number of cores, interleaved. A long run over small images (use --batches=10000 to be sure) shows whether
memory grows.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from byov_jax.data import registry
from byov_jax.data.dataset import Source
from byov_jax.data.loading import crops, pipeline

SIZE = 224
FILES = 64
"""Number of files decoded per run."""

BATCH = 64
WARM, MEASURED = 10, 90
"""Batches before and during a measurement of the pipeline; the first ones fill its buffers."""


def main() -> None:
    """Run the benchmark and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", metavar="FOLDER", help="JPEGs to measure (default: generated)")
    parser.add_argument("--repeats", type=int, default=15, help="timed runs of each kind (default: 15)")
    parser.add_argument(
        "--workers", type=int, nargs="*", default=[0, 1, 2], help="worker counts (default: 0 1 2)"
    )
    parser.add_argument("--batches", type=int, default=2000, help="length of the memory run, 0 for none")
    parser.add_argument("--json", metavar="FILE", help="also write the result here")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats={arguments.repeats} must be at least 1")

    with tempfile.TemporaryDirectory() as folder:
        try:
            source = arguments.source or generate(Path(folder) / "photos", FILES, (375, 500))
            images = registry.open_dataset(source).train
        except (ValueError, OSError) as error:
            parser.error(f"--source: {error}")
        result: dict[str, Any] = {"cores": os.cpu_count(), "decode": decode(images, arguments.repeats)}
        result["pipeline"] = {workers: throughput(images, workers) for workers in arguments.workers}
        result["scaling"] = scaling(images, pipeline.usable_cores(), min(arguments.repeats, 3))
        if arguments.batches:
            small = registry.open_dataset(generate(Path(folder) / "small", 200, (48, 64))).train
            result["memory"] = memory(small, arguments.batches, workers=2)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(text + "\n")


def generate(folder: Path, count: int, shape: tuple[int, int]) -> str:
    """Write JPEGs with structure at all scales and photographic noise, and return their folder."""
    rng = np.random.default_rng(0)
    (folder / "train").mkdir(parents=True)
    for i in range(count + 1):
        total = np.zeros((*shape, 3), np.float32)
        for size in (4, 8, 16, 32, 64):
            coarse = rng.integers(0, 256, (max(2, shape[0] // size), max(2, shape[1] // size), 3), np.uint8)
            total += np.asarray(Image.fromarray(coarse).resize(shape[::-1], Image.Resampling.BICUBIC)) / 5
        total += rng.normal(scale=18.0, size=(*shape, 1))
        photo = Image.fromarray(total.clip(0, 255).astype(np.uint8))
        photo.save(folder / "train" / f"{i}.jpg", quality=90)
    (folder / "test").mkdir()
    photo.save(folder / "test" / "0.jpg")
    return str(folder)


def decode(images: Source, repeats: int) -> dict[str, Any]:
    """Measure one core: decoding alone, with one crop, and with two."""
    files = [bytes(images[i].image) for i in range(min(len(images), FILES))]

    def cropped(count: int) -> Callable[[int, int, bytes], Any]:
        out = np.empty((count, SIZE, SIZE, 3), np.uint8)
        return lambda repeat, i, file: crops.fill_crops(file, crops.random_bits(0, repeat, i, count), out)

    kinds: dict[str, Callable[[int, int, bytes], Any]] = {
        "decode": lambda repeat, i, file: simplejpeg.decode_jpeg(file),
        "decode_and_crop": cropped(1),
        "decode_and_two_crops": cropped(2),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for repeat in range(repeats + 1):
        for name, work in kinds.items():
            start = time.thread_time()
            for i, file in enumerate(files):
                work(repeat, i, file)
            seconds[name].append(time.thread_time() - start)
    result: dict[str, Any] = {
        "files": len(files),
        "mean_kilobytes": round(statistics.mean(map(len, files)) / 1000, 1),
        "repeats": repeats,
    }
    for name, times in seconds.items():
        shares = [bare / time for bare, time in zip(seconds["decode"][1:], times[1:], strict=True)]
        result[name] = {
            "images_per_second": round(len(files) / statistics.median(times[1:]), 1),
            "share_of_decode": round(statistics.median(shares), 3),
            "range": [round(min(shares), 3), round(max(shares), 3)],
        }
    return result


def throughput(images: Source, workers: int, threads: int = 0) -> dict[str, float]:
    """Measure images per second through the pipeline, once its buffers are full."""
    start = time.perf_counter()
    batch = min(BATCH, len(images))
    with _batches(images, WARM + MEASURED, batch, SIZE, workers, threads) as batches:
        for _ in itertools.islice(batches, 1):
            first = time.perf_counter()
        for _ in itertools.islice(batches, WARM - 1):
            warm = time.perf_counter()
        count = sum(len(batch.label) for batch in batches)
        seconds = time.perf_counter() - warm
    return {"images_per_second": round(count / seconds, 1), "first_batch_seconds": round(first - start, 2)}


def scaling(images: Source, cores: int, repeats: int) -> dict[int, Any]:
    """Measure 1, 2, 4 ... workers of one thread each, up to the number of cores, relative to one worker."""
    counts = [2**i for i in range(cores.bit_length())]
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(repeats):
        for count in counts:
            rates[count].append(throughput(images, count, threads=1)["images_per_second"])
    result = {}
    for count, measured in rates.items():
        times = [rate / alone for rate, alone in zip(measured, rates[1], strict=True)]
        result[count] = {
            "images_per_second": statistics.median(measured),
            "times_one_worker": round(statistics.median(times), 2),
            "range": [round(min(times), 2), round(max(times), 2)],
        }
    return result


def memory(images: Source, count: int, workers: int) -> dict[str, Any]:
    """Sample the resident memory of this process and its workers ten times during a long run."""
    resident = []
    with _batches(images, count, 32, 32, workers, 0) as batches:
        for step, _ in enumerate(batches, 1):
            if step % max(1, count // 10) == 0:
                resident.append(round(_resident() / 2**20, 1))
    return {"batches": count, "workers": workers, "resident_mib": resident}


def _batches(
    images: Source, steps: int, batch: int, size: int, workers: int, threads: int
) -> pipeline.Batches:
    return pipeline.batches(
        images,
        seed=0,
        batch_size=batch,
        rows=np.arange(batch),
        first=0,
        steps=steps,
        size=size,
        crops=2,
        workers=workers,
        threads=threads,
    )


def _resident() -> int:
    """Return the resident bytes of this process and all its descendants."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for task in (process / "task").iterdir():
            waiting += [int(child) for child in (task / "children").read_text().split()]
    return total


if __name__ == "__main__":
    main()
