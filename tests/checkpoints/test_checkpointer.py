"""Save, restore and retention of training states: bit for bit, shapes checked, old steps deleted."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import byov_jax as byov
from byov_jax.checkpoints import checkpointer, store
from byov_jax.checkpoints.checkpointer import CheckpointWriter
from byov_jax.checkpoints.store import Retention
from byov_jax.errors import RunError


@pytest.fixture(scope="module")
def state() -> byov.State:
    """A state with a teacher prior, only its kernels Bayesian, every number random."""
    settings = {"prior": byov.priors.teacher_moments(), "where": r".*kernel"}
    method = tiny.byov_method(**settings)
    state = method.init(jax.random.key(0), tiny.batch())
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: (100 * rng.normal(size=x.shape)).astype(x.dtype), state)


@pytest.fixture(scope="module")
def saved(state, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    for step in (3, 20, 100):
        checkpointer.save(directory, step, state._replace(step=jnp.asarray(step, jnp.int32)))
    return directory


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def test_the_fixture_covers_every_kind_of_leaf(state):
    """None leaves, empty containers and NamedTuples."""
    assert state.posterior.log_var["predictor"]["dense_0"]["bias"] is None
    assert state.prior.variance["encoder"]["Dense_0"]["kernel"].shape == (64, 8)
    assert isinstance(state.optimizer, tuple)
    assert isinstance(state.variance[0], tuple)
    assert not jax.tree.leaves(state.optimizer.inner_state[1])


@pytest.mark.parametrize("form", [lambda state: state, abstract], ids=["concrete", "abstract"])
def test_a_state_comes_back_bit_for_bit(state, saved, form):
    restored = checkpointer.restore(saved, 20, form(state))
    expected = state._replace(step=np.asarray(20, np.int32))
    assert jax.tree.structure(restored) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_restored_state_is_on_one_device(state, saved):
    restored = checkpointer.restore(saved, 3, abstract(state))
    assert all(leaf.devices() == {jax.local_devices()[0]} for leaf in jax.tree.leaves(restored))


def test_latest_step_is_the_largest(state, saved):
    assert store.latest_step(saved) == 100
    assert int(checkpointer.restore(saved, 100, state).step) == 100
    assert int(checkpointer.restore(saved, 3, state).step) == 3


def test_latest_step_is_none_without_a_checkpoint(tmp_path):
    assert store.latest_step(tmp_path / "missing") is None
    assert not (tmp_path / "missing").exists()
    assert store.latest_step(tmp_path) is None
    (tmp_path / "file").write_text("not a directory")
    assert store.latest_step(tmp_path / "file") is None


def test_latest_step_ignores_unfinished_steps(tmp_path):
    checkpointer.save(tmp_path, 5, {"a": np.ones(2)})
    shutil.copytree(tmp_path / "5", tmp_path / "6.unfinished")
    (tmp_path / "7").mkdir()
    assert store.latest_step(tmp_path) == 5


def test_a_relative_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "run"
    checkpointer.save(directory.relative_to(tmp_path), 1, {"a": np.arange(3)})
    restored = checkpointer.restore(directory.relative_to(tmp_path), 1, {"a": np.zeros(3, int)})
    np.testing.assert_array_equal(restored["a"], np.arange(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mean: mean | {"bias": np.zeros(9, np.float32)}, r"/bias is \(8,\), expected \(9,\)$"),
        (lambda mean: {"kernel": mean["kernel"]}, r"/bias is \(8,\), expected absent$"),
        (lambda mean: mean | {"bias": None}, r"/bias is \(8,\), expected absent$"),
        (lambda mean: mean | {"more": np.zeros(2)}, r"/more is absent, expected \(2,\)$"),
        (lambda mean: mean | {"kernel": mean["kernel"].T}, r"/kernel is \(64, 8\), expected \(8, 64\)$"),
    ],
)
def test_another_shape_is_refused_with_the_first_difference(state, saved, capfd, change, message):
    mean = state.posterior.mean
    encoder = {"Dense_0": change(mean["encoder"]["Dense_0"])}
    like = state._replace(posterior=state.posterior._replace(mean=mean | {"encoder": encoder}))
    with pytest.raises(RunError, match=f"100 cannot be read: posterior/mean/encoder/Dense_0{message}"):
        checkpointer.restore(saved, 100, like)
    assert capfd.readouterr().err == ""


def test_a_step_that_is_missing_or_empty_is_refused(saved, state, tmp_path):
    with pytest.raises(RunError, match=r"there is no checkpoint .*7$"):
        checkpointer.restore(saved, 7, state)
    (tmp_path / "7").mkdir()
    with pytest.raises(RunError, match="7 cannot be read"):
        checkpointer.restore(tmp_path, 7, state)


SMALL = {"a": jnp.arange(3.0)}


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (Retention(), [5, 6, 7]),
        (Retention(last=1), [7]),
        (Retention(last=10), [1, 2, 3, 4, 5, 6, 7]),
        (Retention(last=2, every=3), [3, 6, 7]),
        (Retention(last=1, every=1), [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_retention_keeps_the_last_steps_and_multiples(retention, left, tmp_path):
    writer = CheckpointWriter(tmp_path, retention=retention)
    for step in range(1, 8):
        writer.save(step, SMALL)
    writer.close()
    assert (writer.saved_step, writer.failure) == (7, None)
    assert store.steps(tmp_path) == left
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [str(step) for step in left]


def test_a_failed_deletion_is_retried_after_the_next_save(tmp_path, monkeypatch):
    writer = CheckpointWriter(tmp_path, retention=Retention(last=1))
    writer.save(1, SMALL)
    writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(store.shutil, "rmtree", lambda *_, **__: None)
        writer.save(2, SMALL)
        writer.wait()
    assert (writer.saved_step, writer.failure) == (2, None)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1.retired", "2"]
    writer.save(3, SMALL)
    writer.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["3"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_state_that_is_not_finite_is_never_saved(value, state, tmp_path):
    writer = CheckpointWriter(tmp_path)
    writer.save(1, state)
    mean = state.posterior.mean
    kernel = mean["encoder"]["Dense_0"]["kernel"].copy()
    kernel[3, 3] = value
    bad = mean | {"encoder": {"Dense_0": mean["encoder"]["Dense_0"] | {"kernel": kernel}}}
    writer.save(2, state._replace(posterior=state.posterior._replace(mean=bad)))
    writer.wait()
    assert writer.failure == "the state of step 2 is not finite and was not saved"
    assert writer.saved_step == 1
    writer.save(3, state)
    writer.close()
    assert writer.failure is None
    assert store.steps(tmp_path) == [1, 3]


def test_a_state_may_be_donated_once_save_returns(tmp_path):
    """The checkpoint holds the values at the call of `save`."""
    advance = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1.0, tree), donate_argnums=0)
    tree = {"a": jnp.zeros((512, 512)), "b": jnp.zeros(3)}
    writer = CheckpointWriter(tmp_path)
    for step in range(1, 4):
        tree = advance(tree)
        writer.save(step, tree)
        tree = advance(tree)
    writer.close()
    for step in range(1, 4):
        restored = checkpointer.restore(tmp_path, step, {"a": np.zeros((512, 512)), "b": np.zeros(3)})
        values = {float(x) for leaf in restored.values() for x in (leaf.min(), leaf.max())}
        assert values == {2.0 * step - 1.0}


def test_a_complete_step_is_never_overwritten(tmp_path):
    checkpointer.save(tmp_path, 1, SMALL)
    with pytest.raises(RunError, match=r"step 1 could not be saved .*1 exists already"):
        checkpointer.save(tmp_path, 1, {"a": jnp.zeros(3)})
    np.testing.assert_array_equal(checkpointer.restore_newest(tmp_path, SMALL)["a"], np.arange(3.0))


def test_metadata_is_stored_with_a_step(tmp_path):
    assert store.metadata(tmp_path) == {}
    for step in (1, 2):
        checkpointer.save(tmp_path, step, SMALL, metadata={"config": {"tau": step / 10}})
    assert store.metadata(tmp_path) == {"config": {"tau": 0.2}, "step": 2}
    (tmp_path / "2" / "manifest.json").write_text("{")
    assert store.metadata(tmp_path) == {"config": {"tau": 0.1}, "step": 1}


def test_nothing_is_restored_where_nothing_was_saved(tmp_path):
    assert checkpointer.restore_newest(tmp_path / "nowhere", SMALL) is None
    assert checkpointer.restore_newest(tmp_path, SMALL, warn=pytest.fail) is None


def test_a_save_without_disk_space_is_refused_before_it_starts(state, tmp_path, monkeypatch):
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    disk = [10 * size, 9 * size + 1, size - 1]  # total, used, free
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(*disk))
    with pytest.raises(RunError, match=r"could not be saved \(it needs [0-9.]+ MiB, [0-9.]+ MiB are free\)$"):
        checkpointer.save(tmp_path / "checkpoints", 1, state)
    assert not list((tmp_path / "checkpoints").iterdir())
    disk[0] = disk[2] = 0  # a file system that reports 0
    checkpointer.save(tmp_path / "checkpoints", 1, state)
    assert store.steps(tmp_path / "checkpoints") == [1]
