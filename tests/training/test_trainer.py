"""A training in its run directory: logged, evaluated, saved, stopped and resumed to the same numbers."""

import copy
import json

import chex
import jax
import numpy as np
import pytest
import trainings
from jax.experimental.compilation_cache import compilation_cache
from trainings import DATA, lines

from byov_jax.checkpoints import store
from byov_jax.data.dataset import Unlabelled, UnlabelledImages
from byov_jax.errors import RunError
from byov_jax.methods import online_probe
from byov_jax.model import load
from byov_jax.training import build, callbacks, monitor, run_directory
from byov_jax.training import trainer as runs

pytestmark = pytest.mark.usefixtures("one_device")

CONFIG = trainings.CONFIG | {
    "method": "byov",
    "prior": "teacher_moments",
    "encoder": trainings.CONFIG["encoder"] | {"drop_path": 0.1},
    "log_every": 2,
    "save_every": 8,
}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    """Most trainings here are of one program, which takes longer to compile than to run."""
    compilation_cache.reset_cache()  # JAX looks for a cache at the first compilation only
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()


def prepared(data=DATA, **changes):
    return runs.resolve_config(copy.deepcopy(CONFIG) | changes, data)


def state(run):
    model = load(run)
    return jax.device_get((model.posterior, model.stats, model.teacher)), model.step


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        devices = jax.devices()[:1]
        patch.setattr(runs.jax, "devices", lambda: devices)
        assert runs.train(prepared(), DATA, workdir) == (7, 0)
    return workdir


def test_the_run_directory_has_what_it_promises(whole):
    metrics = lines(whole)
    assert [line["step"] for line in metrics] == [0, 2, 3, 4, 6, 7]
    assert [line["step"] for line in metrics if "knn" in line] == [0, 3, 6, 7]
    assert all(0.0 <= line["probe"] <= 1.0 for line in metrics if "probe" in line)
    wanted = {"loss", "cosine", "kl", "kl_per_weight", "kl_scaled", "beta", "temperature", "learning_rate"}
    wanted |= {"tau", "embedding_std", "gradient_norm", "probe_loss", "probe_accuracy", "epoch"}
    wanted |= {"implied_l2"}
    assert wanted <= set(metrics[-1])
    assert metrics[-1]["epoch"] == 7 / 3
    layers = lines(whole, run_directory.POSTERIOR)
    assert [line["step"] for line in layers] == [0, 3, 6, 7]
    assert set(layers[0]["layers"]["encoder/blocks_0/mlp/up/kernel"]) == {
        "sigma_mean",
        "sigma_max",
        "snr_mean",
        "snr_max",
    }
    assert store.latest_step(whole / run_directory.CHECKPOINTS) == 7
    environment = json.loads((whole / run_directory.ENVIRONMENT).read_text())
    assert {"packages", "devices", "commit"} <= set(environment)


def assert_same(workdir, whole):
    for name in (run_directory.METRICS, run_directory.POSTERIOR):
        assert lines(workdir, name) == lines(whole, name)
    chex.assert_trees_all_equal(state(workdir), state(whole))


def test_the_same_run_again_gives_the_same_bits(whole, tmp_path):
    """Even if the process died before the first checkpoint, after it had logged the untrained network."""

    def die(line):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        runs.train(prepared(), DATA, tmp_path / "run", callbacks.Callbacks(metrics=die))
    assert [line["step"] for line in lines(tmp_path / "run")] == [0]
    assert runs.train(prepared(), DATA, tmp_path / "run") == (7, 0)
    assert_same(tmp_path / "run", whole)


def test_a_run_that_was_stopped_between_two_saves_ends_with_the_same_bits(whole, tmp_path):
    workdir, config, reached = tmp_path / "run", prepared(), []
    listener = callbacks.Callbacks(step=reached.append, stop=lambda: reached[-1] == 5)
    assert runs.train(config, DATA, workdir, listener) == (5, 1)
    assert store.latest_step(workdir / run_directory.CHECKPOINTS) == 5
    with (workdir / run_directory.METRICS).open(
        "a"
    ) as file:  # one that is killed has logged more than it saved
        file.write('{"step": 6, "loss": 17.0}\n{"step": 7, "lo')
    assert runs.train(config, DATA, workdir) == (7, 0)
    assert_same(workdir, whole)


def test_a_finished_run_is_left_as_it_is(whole):
    before = lines(whole)
    assert runs.train(prepared(), DATA, whole) == (7, 0)
    assert lines(whole) == before


def test_another_config_is_refused_with_the_difference(whole):
    with pytest.raises(RunError, match=r"holds another run: tau is 0\.99 there, 0\.5 here; choose another"):
        runs.train(prepared(tau=0.5), DATA, whole)


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunError, match="neither empty nor a run directory"):
        runs.train(prepared(), DATA, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_collapse_is_announced_once(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "COLLAPSED", 10.0)
    warnings = []
    runs.train(prepared(), DATA, tmp_path / "run", callbacks.Callbacks(warning=warnings.append))
    (text,) = warnings
    assert "the embeddings have collapsed" in text
    assert "step 2" in text


def test_a_network_that_diverged_has_no_accuracy(whole):
    saved = trainings.state(whole)
    mean = jax.tree.map(lambda x: x * np.nan, saved.posterior.mean)
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices())
    broken = saved._replace(posterior=saved.posterior._replace(mean=mean), online=online_probe.init(8, 3))
    config = run_directory.read_config(whole)
    found = monitor.held_out(build.network(config), build.views(config), broken, DATA, mesh)
    assert found.keys() == {"probe", "knn"}
    assert all(np.isnan(value) for value in found.values())


def test_images_without_labels_are_enough(tmp_path):
    data = Unlabelled(UnlabelledImages(DATA.train.image), UnlabelledImages(DATA.test.image))
    workdir = tmp_path / "run"
    runs.train(prepared(data, method="byol", steps=2), data, workdir)
    assert not any("probe" in line or "knn" in line for line in lines(workdir))
    assert not (workdir / run_directory.POSTERIOR).exists()


def test_a_supervised_run_shows_its_own_head(tmp_path):
    workdir = tmp_path / "run"
    runs.train(prepared(method="supervised_bbb", where="head", steps=2), DATA, workdir)
    last = lines(workdir)[-1]
    predicted = load(workdir).predict(DATA.test.image, draws=0).probs
    assert last["probe"] == pytest.approx(np.mean(np.argmax(predicted, 1) == DATA.test.label))
    assert "tau" not in last
    assert "accuracy" in last


def test_views_that_the_network_cannot_take_are_refused_before_anything_starts():
    with pytest.raises(ValueError, match=r"config\.views\.size=21: a network for such views does not take"):
        prepared(
            views={"name": "small_gray", "size": 21},
            encoder=CONFIG["encoder"] | {"positions": "learned"},
        )
