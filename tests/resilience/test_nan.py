"""Values that are not finite: one batch is skipped with a warning; if all are, the run ends with advice."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trainings import DATA, assert_same, assert_same_state, images, lines, prepared, state, stopping

import byov_jax
from byov_jax.checkpoints import store
from byov_jax.cli import train
from byov_jax.data.dataset import Dataset
from byov_jax.data.loading.order import batch_indices
from byov_jax.errors import TrainingError
from byov_jax.images.views import Views, small_gray
from byov_jax.methods.objectives import Batch
from byov_jax.training import build, callbacks, feed, loop, run_directory
from byov_jax.training import trainer as runs

STEPS, BATCH = 7, 16
WHITE = 255


@dataclasses.dataclass(frozen=True)
class ViewsWithNaN(Views):
    """Views that are not finite for an image that is white."""

    def __call__(self, keys, images):
        exposure = jax.vmap(lambda key: jax.random.uniform(key, (2, 1, 1, 1), minval=0.2))(keys)
        x = images.astype(jnp.float32) / WHITE
        white = jnp.all(images == WHITE, axis=(1, 2, 3), keepdims=True)
        return jnp.where(white, jnp.nan, x * exposure[:, 0]), jnp.square(x) * exposure[:, 1]


@pytest.fixture(autouse=True)
def _views_with_nan(quick, monkeypatch):
    small = small_gray(size=14)
    views = ViewsWithNaN(small.first, small.second, small.mean, small.std)
    monkeypatch.setitem(build.VIEWS, "small_gray", lambda **fields: views)


def data(*white):
    """An epoch of seven batches, in which some images are white."""
    train = images(STEPS * BATCH, 0)
    train.image[list(white)] = WHITE
    return Dataset(train, DATA.test, DATA.classes)


CONFIG = {"seed": 4, "steps": STEPS, "guard": {"patience": 3}, "save_every": 4}
BAD_STEP = 3
BAD = int(batch_indices(CONFIG["seed"], BAD_STEP, STEPS * BATCH, BATCH)[-1])


def test_one_batch_is_skipped_counted_and_named(tmp_path, programs):
    config, warnings = prepared(data(BAD), **CONFIG), []
    assert runs.train(config, data(BAD), tmp_path / "run", callbacks.Callbacks(warning=warnings.append)) == (
        7,
        0,
    )
    text = f"step {BAD_STEP + 1}: 1 of the last steps were skipped: the loss was not finite; 1 in all"
    assert [warning for warning in warnings if "skipped" in warning] == [text]
    found = lines(tmp_path / "run")
    assert [line["skipped"] for line in found[1:]] == [int(line["step"] > BAD_STEP) for line in found[1:]]
    assert [line["step"] for line in found if line.get("loss", 0.0) is None] == [BAD_STEP + 1]
    assert_same_state(state(tmp_path / "run"), without_the_update(programs(config), config))


def without_the_update(runner, config):
    """The state of a training that leaves out one update, made by hand."""
    keys = loop.keys(config.seed, config.prng, runner.replicated)
    order = {key: getattr(config, key) for key in ("seed", "batch_size", "steps")}
    train = data(BAD).train
    placed = runner.init(keys.init)
    for step, batch in enumerate(feed.from_memory(runner, Batch(train.image, train.label), first=0, **order)):
        if step == BAD_STEP:
            skipped = placed.guard._replace(skipped=jnp.int32(1), in_a_row=jnp.int32(1), reason=jnp.int32(1))
            placed = runner.put_state(placed._replace(step=placed.step + 1, guard=skipped))
        else:
            placed, _ = runner.step(placed, batch, keys.steps)
    return jax.device_get(placed)


def test_a_run_that_goes_on_after_it_tells_nothing_twice(tmp_path):
    config, warnings = prepared(data(BAD), **CONFIG), []
    runs.train(config, data(BAD), tmp_path / "whole")
    runs.train(config, data(BAD), tmp_path / "run", stopping(BAD_STEP + 1))
    runs.train(config, data(BAD), tmp_path / "run", callbacks.Callbacks(warning=warnings.append))
    assert not any("skipped" in warning for warning in warnings)
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_nothing_but_nan_ends_the_run_and_the_last_good_state_stays(tmp_path):
    """The images go bad while it runs."""
    config, workdir = prepared(data(), **CONFIG), tmp_path / "run"
    runs.train(config, data(), workdir, stopping(2))
    good = state(workdir)
    with pytest.raises(TrainingError) as failed:
        runs.train(config, data(*range(STEPS * BATCH)), workdir)
    message = str(failed.value)
    assert "the last 3 steps were skipped: the loss was not finite. Nothing was lost; try a lower" in message
    assert "\n" not in message
    assert [line["step"] for line in lines(workdir)] == [0, 1, 2, 3, 4, 5][: len(lines(workdir))]
    found = state(workdir)  # saved since, with the same weights
    assert_same_state(found._replace(step=None, guard=None), good._replace(step=None, guard=None))
    assert byov_jax.load(workdir).step == int(found.step) == 4
    assert store.latest_step(workdir / run_directory.CHECKPOINTS) == 4


def test_the_command_says_so_with_exit_code_1(tmp_path, capsys):
    white = data(*range(STEPS * BATCH))
    parts = {"train": white.train, "test": white.test}
    arrays = {
        f"{name}_{field}": getattr(part, field) for name, part in parts.items() for field in part._fields
    }
    np.savez(tmp_path / "data.npz", **arrays)
    section = {"source": str(tmp_path / "data.npz")}
    config = prepared(white, **CONFIG).to_dict()
    (tmp_path / "config.py").write_text(
        f"def get_config(variant=''):\n    return {config | {'data': section}!r}"
    )
    arguments = [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'run'}"]
    assert train.main(arguments) == 1
    error = capsys.readouterr().err
    assert "train: " in error
    assert "the last 3 steps were skipped: the loss was not finite" in error.splitlines()[-1]
    assert "Traceback" not in error
    assert store.latest_step(tmp_path / "run" / run_directory.CHECKPOINTS) == 2
