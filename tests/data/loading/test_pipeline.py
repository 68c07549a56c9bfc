"""The stream: exact epochs whatever the hosts and workers, exact resumption, and clear ends."""

import io
import multiprocessing

import numpy as np
import pytest
from PIL import Image

from byov_jax.data import dataset, registry
from byov_jax.data.dataset import ArraySource
from byov_jax.data.loading import crops, pipeline
from byov_jax.data.loading.order import batch_indices
from byov_jax.errors import ImageError

SIZE, BATCH = 30, 8
STEPS = 15  # four epochs; none but the last ends with a batch
RNG = np.random.default_rng(0)
NUMBERED = ArraySource(
    np.broadcast_to(np.arange(SIZE, dtype=np.uint8)[:, None, None, None], (SIZE, 9, 7, 1)).copy(),
    np.arange(SIZE, dtype=np.int32) % 10,
    "numbers",
)
NOISE = ArraySource(RNG.integers(0, 256, (SIZE, 40, 50, 3), np.uint8), NUMBERED.label, "noise")


def run(data=NUMBERED, **changes) -> list[pipeline.HostBatch]:
    settings = {"seed": 3, "batch_size": BATCH, "rows": np.arange(BATCH), "first": 0, "steps": STEPS}
    with pipeline.batches(data, **(settings | {"size": 6, "crops": 1} | changes)) as found:
        return list(found)


def numbers(batches: list[pipeline.HostBatch]) -> np.ndarray:
    """Which images the rows of each step hold."""
    return np.stack([batch.image[:, 0, 3, 3, 0] for batch in batches])


# Not every pair: each starts hosts * workers processes.
@pytest.mark.parametrize(
    ("hosts", "workers"), [(1, 0), (2, 0), (4, 0), (1, 1), (4, 1), (1, 2), (2, 2), (1, 4)]
)
def test_epochs_are_exact_whatever_the_hosts_and_workers(hosts, workers):
    shares = np.split(np.arange(BATCH), hosts)
    found = np.concatenate([numbers(run(rows=rows, workers=workers)) for rows in shares], axis=1)
    expected = np.stack([batch_indices(3, step, SIZE, BATCH) for step in range(STEPS)])
    np.testing.assert_array_equal(found, expected)
    for epoch in found.reshape(4, SIZE):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(SIZE))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("first", [1, 7, STEPS])
def test_a_resumed_stream_goes_on_with_the_same_crops(first):
    whole, rest = run(NOISE, crops=2), run(NOISE, crops=2, first=first)
    assert len(rest) == STEPS - first
    for one, other in zip(whole[first:], rest, strict=True):
        np.testing.assert_array_equal(one.image, other.image)
        np.testing.assert_array_equal(one.label, other.label)


def test_a_crop_depends_on_seed_step_and_row_alone():
    rows = np.array([6, 1])
    for step, batch in enumerate(run(NOISE, rows=rows, crops=2, steps=3, area=(0.3, 0.9), aspect=(1.0, 2.0))):
        indices = batch_indices(3, step, SIZE, BATCH)[rows]
        np.testing.assert_array_equal(batch.label, NOISE.label[indices])
        assert batch.image.shape == (2, 2, 6, 6, 3)
        for image, row, i in zip(batch.image, rows, indices, strict=True):
            bits = crops.random_bits(3, step, int(row), 2)
            expected = crops.random_crops(NOISE.image[i], bits, 6, (0.3, 0.9), (1.0, 2.0))
            np.testing.assert_array_equal(image, expected)
            assert (image[0] != image[1]).any()


def test_more_rows_than_are_decoded_at_a_time():
    found = numbers(run(batch_size=29, rows=np.arange(29), steps=2))
    np.testing.assert_array_equal(found, [batch_indices(3, step, SIZE, 29) for step in range(2)])


def write_folder(root) -> str:
    for i in range(12):
        (root / "train").mkdir(exist_ok=True)
        Image.new("RGB", (10, 10)).save(root / "train" / f"{i}.png")
    (root / "train/5.png").write_bytes(b"no image")
    return str(root)


@pytest.mark.parametrize("workers", [0, 1])
def test_threads_change_nothing(workers):
    one, three = (numbers(run(workers=workers, threads=threads)) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_read_is_named(tmp_path, workers):
    data = registry.open_dataset(write_folder(tmp_path))
    bad = data.train if any("/5.png" in data.train.name(i) for i in range(len(data.train))) else data.test
    with pytest.raises(ImageError, match="cannot be read as an image") as error:
        run(bad, batch_size=1, rows=np.arange(1), steps=len(bad), workers=workers)
    assert error.value.name == str(tmp_path / "train/5.png")
    assert error.value.reason.startswith("it is none of JPEG, PNG")
    assert str(error.value) == f"{error.value.name} cannot be read as an image ({error.value.reason})"
    assert not multiprocessing.active_children()


class Broken(ArraySource):
    """Noise in which some images cannot be read."""

    def __init__(self, *bad) -> None:
        super().__init__(NOISE.image, np.arange(SIZE, dtype=np.int32), "noise")
        self.bad = bad

    def __getitem__(self, i):
        if i in self.bad:
            raise OSError(f"{i} is\nbroken")
        return super().__getitem__(i)


def test_a_bad_image_is_replaced_by_the_next_good_one_whatever_the_hosts_and_workers():
    bad = (4, 5, SIZE - 1)
    whole = run(Broken(*bad), crops=2, steps=4, on_error="replace")
    for step, batch in enumerate(whole):
        indices = batch_indices(3, step, SIZE, BATCH)
        expected = [{4: 6, 5: 6, SIZE - 1: 0}.get(i, i) for i in indices.tolist()]
        assert batch.label.tolist() == expected
        for row, i in enumerate(expected):
            bits = crops.random_bits(3, step, row, 2)
            np.testing.assert_array_equal(batch.image[row], crops.random_crops(NOISE.image[i], bits, 6))
        met = [name for i in indices for name in {4: (4, 5), 5: (5,), SIZE - 1: (SIZE - 1,)}.get(i, ())]
        assert batch.unreadable == tuple((f"image {i} of noise", f"{i} is broken") for i in met)
    assert sum(len(batch.unreadable) for batch in whole) >= 4
    shares = [
        run(Broken(*bad), rows=rows, crops=2, steps=4, workers=1, on_error="replace")
        for rows in np.split(np.arange(BATCH), 2)
    ]
    for batch, *parts in zip(whole, *shares, strict=True):
        np.testing.assert_array_equal(np.concatenate([part.image for part in parts]), batch.image)
        np.testing.assert_array_equal(np.concatenate([part.label for part in parts]), batch.label)
        assert parts[0].unreadable + parts[1].unreadable == batch.unreadable


def test_without_any_image_that_can_be_read_it_gives_up(monkeypatch):
    with pytest.raises(ImageError, match=r"\d+ is broken; nor can the 29 before it"):
        run(Broken(*range(SIZE)), on_error="replace")
    monkeypatch.setattr(dataset, "MAX_REPLACED", 3)
    (batch,) = run(Broken(0, 1), batch_size=SIZE, rows=np.arange(SIZE), steps=1, on_error="replace")
    assert sorted(batch.label) == [2, 2, 2, *range(3, SIZE)]
    with pytest.raises(ImageError, match="nor can the 2 before it"):
        run(Broken(0, 1, 2), steps=STEPS, on_error="replace")


def test_leaving_early_ends_the_workers():
    found = pipeline.batches(
        NUMBERED, seed=0, batch_size=4, rows=np.arange(4), first=0, steps=10**6, size=6, crops=1, workers=1
    )
    with found:
        next(found)
        assert len(multiprocessing.active_children()) == 1
    assert not multiprocessing.active_children()
    assert list(found) == []
    found.close()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"first": 16}, "first=16 must be between 0 and steps=15"),
        ({"first": -1}, "first=-1 must be"),
        ({"size": 0}, "size=0 must be at least 1"),
        ({"crops": 0}, "crops=0 must be at least 1"),
        ({"workers": -1}, "workers=-1 must be at least 0"),
        ({"threads": -1}, "threads=-1 must be at least 0"),
        ({"on_error": "ignore"}, "on_error='ignore' must be one of replace, raise"),
        ({"rows": np.array([0, 8])}, r"rows must be some of 0 to 7, got \[0 8\]"),
        ({"rows": np.array([], int)}, "rows must be some of 0 to 7"),
        ({"batch_size": 31}, "batch must be between 1 and 30, the number of images, got 31"),
    ],
)
def test_impossible_settings_are_refused_at_once(changes, problem):
    with pytest.raises(ValueError, match=problem):
        run(**changes)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


def test_unusual_images_are_read_as_pillow_sees_them(tmp_path):
    """Through files, threads and crops of the whole image."""
    ramp = np.linspace(0, 255, 40).astype(np.uint8)
    color = Image.fromarray(
        np.stack([np.tile(ramp, (40, 1)), np.tile(ramp[:, None], 40), 0 * ramp + ramp[:, None]], -1)
    )
    gray, turned = color.convert("L"), Image.Exif()
    turned[0x0112] = 6
    deep = np.asarray(gray).astype(np.uint16) * 257
    large = color.resize((9000, 9000))  # just below what Pillow takes for a decompression bomb
    kinds = {
        "a.jpg": (encoded(color.convert("CMYK"), "JPEG", quality=98), color),
        "b.png": (encoded(Image.fromarray(deep), "PNG"), gray),
        "c.png": (encoded(color.quantize(256), "PNG"), color),
        "d.gif": (encoded(color, "GIF", save_all=True, append_images=[color.rotate(180)]), color),
        "e.jpg": (encoded(gray, "JPEG", quality=98), gray),
        "f.jpg": (encoded(color, "JPEG", quality=98, subsampling=0, exif=turned), color.rotate(-90)),
        "g.jpg": (encoded(large, "JPEG"), color),
        "h.jpg": (encoded(color, "PNG"), color),  # the name says nothing
    }
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    for name, (content, _) in kinds.items():
        (tmp_path / "train" / name).write_bytes(content)
    (tmp_path / "test/0.png").write_bytes(kinds["c.png"][0])
    found = registry.open_dataset(str(tmp_path)).train
    whole = {"area": (1.0, 1.0), "aspect": (1.0, 1.0), "size": 40}
    (batch,) = run(found, batch_size=8, rows=np.arange(8), steps=1, on_error="replace", **whole)
    assert batch.unreadable == ()
    for i, image in zip(batch_indices(3, 0, 8, 8).tolist(), batch.image[:, 0], strict=True):
        expected = np.asarray(list(kinds.values())[i][1].convert("RGB"), float)
        assert np.abs(image - expected).mean() < 6, found.name(i)
