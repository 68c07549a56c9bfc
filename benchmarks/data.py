"""How fast images become crops: beside the bare decoder, through the whole pipeline, and in how much memory.

    python -m benchmarks.data [--source=FOLDER] [--repeats=15] [--batches=2000] [--json=FILE]

Without a source it makes JPEGs like those of ImageNet: 500x375 pixels, about 110 kB. In every repeat the same
files, from memory, are decoded (simplejpeg, full size) and turned into one and into two random crops of 224
pixels. It is the processor's time of one core that counts, and a share is the median of the ratios of
neighbouring runs: other programs on the machine matter little. Then the pipeline reads the files from disk,
with two crops each: as it is used, by several numbers of worker processes; and with one thread in each of 1,
2, 4 ... workers up to the number of cores, in turn, which shows how it scales. A long run over small images
(--batches=10000 to be sure) shows whether memory grows.
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
from byov_jax.data.loading import crops
from byov_jax.data.loading import pipeline as stream
from byov_jax.data.records import Source

SIZE = 224
FILES = 64
"""How many are decoded in one run."""

BATCH = 64
WARM, MEASURED = 10, 90
"""Batches of the pipeline before and during the measurement: buffers must be full before it."""


def main() -> None:
    """Parses the command line, measures, prints JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", metavar="FOLDER", help="a data set with JPEGs to measure (default: made)")
    parser.add_argument("--repeats", type=int, default=15, help="timed runs of each kind (default: 15)")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2], help="numbers (default: 0 1 2)")
    parser.add_argument("--batches", type=int, default=2000, help="of the memory run, 0 for none")
    parser.add_argument("--json", metavar="FILE", help="write the result here as well")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats={arguments.repeats} must be at least 1")

    with tempfile.TemporaryDirectory() as folder:
        try:
            place = arguments.source or make(Path(folder) / "photos", FILES, (375, 500))
            images = registry.open(place).train
        except (ValueError, OSError) as error:
            parser.error(f"--source: {error}")
        result: dict[str, Any] = {"cores": os.cpu_count(), "decode": decode(images, arguments.repeats)}
        result["pipeline"] = {workers: pipeline(images, workers) for workers in arguments.workers}
        result["scaling"] = scaling(images, stream.cores(), min(arguments.repeats, 3))
        if arguments.batches:
            small = registry.open(make(Path(folder) / "small", 200, (48, 64))).train
            result["memory"] = memory(small, arguments.batches, workers=2)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(text + "\n")


def make(folder: Path, count: int, shape: tuple[int, int]) -> str:
    """Writes JPEGs with structure at every scale and the grain of photographs."""
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
    """Rates of one core: the decoder alone, with one crop, and with two."""
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


def pipeline(images: Source, workers: int, threads: int = 0) -> dict[str, float]:
    """Images per second through everything, once the workers are busy."""
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
    """Workers of one thread each, 1, 2, 4 ... as many as cores: how many times the images of one worker."""
    counts = [2**i for i in range(cores.bit_length())]
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(repeats):
        for count in counts:
            rates[count].append(pipeline(images, count, threads=1)["images_per_second"])
    result = {}
    for count, found in rates.items():
        times = [rate / alone for rate, alone in zip(found, rates[1], strict=True)]
        result[count] = {
            "images_per_second": statistics.median(found),
            "times_one_worker": round(statistics.median(times), 2),
            "range": [round(min(times), 2), round(max(times), 2)],
        }
    return result


def memory(images: Source, count: int, workers: int) -> dict[str, Any]:
    """Resident memory of this process and its workers, at ten moments of a long run."""
    resident = []
    with _batches(images, count, 32, 32, workers, 0) as batches:
        for step, _ in enumerate(batches, 1):
            if step % max(1, count // 10) == 0:
                resident.append(round(_resident() / 2**20, 1))
    return {"batches": count, "workers": workers, "resident_mib": resident}


def _batches(images: Source, steps: int, batch: int, size: int, workers: int, threads: int) -> stream.Batches:
    return stream.batches(
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
    """Bytes of this process and all below it."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for task in (process / "task").iterdir():
            waiting += [int(child) for child in (task / "children").read_text().split()]
    return total


if __name__ == "__main__":
    main()
