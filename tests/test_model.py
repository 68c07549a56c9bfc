"""A trained model: predictions, embeddings, loading from disk, and errors."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import tiny
from numpy.testing import assert_allclose, assert_array_equal

import byov_jax as byov
from byov_jax import files
from byov_jax.checkpoints import checkpointer
from byov_jax.data.sources import fashion_mnist
from byov_jax.errors import RunError
from byov_jax.evaluation import linear_probe, predictive
from byov_jax.model import load, save_probe
from byov_jax.training import build, run_directory
from byov_jax.training.config import Config

SEED, STEPS, BATCH, N, DRAWS = 3, 2, 8, 24, 4
CONFIG = {
    "seed": SEED,
    "steps": 5,
    "batch_size": BATCH,
    "data": {"size": 2 * N, "image": (28, 28, 1), "classes": 3},
    "encoder": {
        "name": "vit",
        "patch": 7,
        "width": 16,
        "depth": 2,
        "heads": 2,
        "pool": "mean",
        "positions": "sincos",
    },
    "projector": {"widths": (16, 8)},
    "predictor": {"widths": (16, 8)},
}
TRAIN = fashion_mnist.load().train
SHOWN = np.flatnonzero(TRAIN.label < 3)[: 2 * N]
DATA = byov.Batch(TRAIN.image[SHOWN], TRAIN.label[SHOWN])
IMAGES, LABELS = DATA.image[:N], DATA.label[:N]  # one shape in all tests: each new one compiles for seconds


def start(run, name, **changes):
    config = Config.parse(CONFIG | {"method": name} | changes)
    run_directory.create(run, config)
    return build.method(config, build.network(config))


def initial(method):
    init_key, _ = jax.random.split(jax.random.key(SEED))
    return method.init(init_key, byov.Batch(DATA.image[:BATCH], DATA.label[:BATCH]))


def without_training(folder, name, **changes):
    """A run whose states are the initial one, under the numbers of two later steps."""
    state = initial(start(folder, name, **changes))
    for step in (1, STEPS):
        checkpointer.save(
            folder / run_directory.CHECKPOINTS, step, state._replace(step=np.asarray(step, np.int32))
        )
    return folder


@pytest.fixture(scope="module")
def byov_run(tmp_path_factory):
    """A run of two steps, and its initial state."""
    run = tmp_path_factory.mktemp("byov")
    method = start(run, "byov")
    *_, last = tiny.train(method, DATA, seed=SEED, steps=STEPS, batch_size=BATCH)
    checkpointer.save(run / run_directory.CHECKPOINTS, last.step, last.placed)
    return run, initial(method)


@pytest.fixture(scope="module")
def trained(byov_run):
    return load(byov_run[0])


@pytest.fixture(scope="module")
def probed(trained):
    return trained.with_probe(IMAGES, LABELS)


@pytest.fixture(scope="module")
def byol_run(tmp_path_factory):
    return without_training(tmp_path_factory.mktemp("byol"), "byol")


@pytest.fixture(scope="module")
def byol(byol_run):
    return load(byol_run)


@pytest.fixture(scope="module")
def bbb(tmp_path_factory):
    return load(without_training(tmp_path_factory.mktemp("bbb"), "supervised_bbb", where="head/.*"))


def by_hand(model, params, stats, **how):
    """The network applied to normalised pixels, without any of the model's code."""
    x = (IMAGES.astype(np.float32) / 255 - np.float32(0.2860)) / np.float32(0.3530)
    return jax.jit(lambda variables, x: model.network.apply(variables, x, **how))(
        {"params": params, **stats}, x
    )


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(assert_array_equal, one, other)


def test_a_loaded_model_has_the_trained_state(trained, byov_run):
    run, before = byov_run
    assert trained.step == STEPS
    assert trained.config == run_directory.read_config(run)
    assert trained.bayesian
    assert not trained.supervised
    assert trained.probe is None
    state = checkpointer.restore(run / run_directory.CHECKPOINTS, STEPS, before)
    assert_same_bits((trained.posterior, trained.stats, trained.teacher), state[1:4])


def test_the_newest_checkpoint_is_loaded(byol, byol_run, tmp_path):
    assert byol.step == STEPS
    run = shutil.copytree(byol_run, tmp_path / "run")
    shutil.rmtree(run / run_directory.CHECKPOINTS / str(STEPS))
    assert load(str(run)).step == 1


def test_embeddings_are_the_network_at_the_posterior_mean(trained):
    expected = by_hand(trained, trained.posterior.mean, trained.stats)
    for tap, width in (("encoder", 16), ("projector", 8), ("predictor", 8)):
        found = trained.embed(IMAGES, tap)
        assert found.shape == (N, width)
        assert_allclose(found, getattr(expected, tap), rtol=1e-4, atol=1e-5)
    everything = predictive.predict(jax.random.key(0), *trained.taps(), IMAGES, mode="mean")
    for found, output in zip(everything, expected, strict=True):
        assert_allclose(found[0], output, rtol=1e-4, atol=1e-5)


def test_the_teacher_has_an_encoder_and_a_projector_of_its_own(trained):
    teacher = trained.teacher
    expected = by_hand(trained, teacher.params, teacher.stats, method="project")
    for tap, output in zip(("encoder", "projector"), expected, strict=True):
        assert_allclose(trained.embed(IMAGES, tap, teacher=True), output, rtol=1e-4, atol=1e-5)
    assert not np.allclose(trained.embed(IMAGES, teacher=True), trained.embed(IMAGES), rtol=1e-4, atol=1e-5)


def test_the_teacher_is_a_model_of_its_own(trained, probed):
    teacher = probed.of_teacher()
    assert not teacher.bayesian
    assert teacher.probe is None
    assert_array_equal(teacher.embed(IMAGES), trained.embed(IMAGES, teacher=True))
    found = teacher.with_probe(IMAGES, LABELS).predict(IMAGES, draws=DRAWS)
    assert_array_equal(found.mutual_information, np.zeros(N))


def test_blocks_are_the_pooled_tokens_before_the_last_norm(trained):
    both, last = trained.embed(IMAGES, blocks=2), np.asarray(trained.embed(IMAGES, blocks=1))
    assert both.shape == (N, 32)
    assert_allclose(both[:, 16:], last, rtol=1e-5, atol=1e-6)
    norm = trained.posterior.mean["encoder"]["norm"]
    centred = last - last.mean(axis=1, keepdims=True)
    scale, bias = np.asarray(norm["scale"]), np.asarray(norm["bias"])
    normed = centred / np.sqrt(last.var(axis=1, keepdims=True) + 1e-6) * scale + bias
    assert_allclose(trained.embed(IMAGES), normed, rtol=1e-4, atol=1e-5)


def test_floats_are_the_same_images(trained):
    floats = IMAGES.astype(np.float32) / 255
    assert_allclose(trained.embed(floats), trained.embed(IMAGES), rtol=1e-5, atol=1e-6)


def test_draws_are_the_same_weights_for_all_images(trained):
    first, second = DATA.image[:N], DATA.image[8 : N + 8]
    found, shifted = trained.embed(first, draws=DRAWS), trained.embed(second, draws=DRAWS)
    assert found.shape == (DRAWS, N, 16)
    assert_allclose(found[:, 8:], shifted[:, : N - 8], rtol=1e-4, atol=1e-5)
    other = trained.embed(first, draws=DRAWS, seed=1)
    spread = np.std(np.concatenate([found, other]), axis=0)
    assert spread.min() > 1e-4  # eight different networks


@pytest.mark.parametrize("tap", ["projector", "predictor"])
def test_every_tap_can_be_drawn(trained, tap):
    found = jax.eval_shape(lambda: trained.embed(IMAGES, tap, draws=DRAWS))  # to compile it takes seconds
    assert found.shape == (DRAWS, N, 8)


def test_predictions_are_those_of_the_draws(trained, probed):
    found = probed.predict(IMAGES, draws=DRAWS)
    probs, features, _ = predictive.predict(jax.random.key(0), *probed.classifier(), IMAGES, DRAWS)
    assert probs.shape == (DRAWS, N, 3)
    assert_allclose(features, trained.embed(IMAGES, draws=DRAWS), rtol=1e-4, atol=1e-5)
    assert_allclose(found.probs, probs.mean(0), rtol=1e-5)
    assert_allclose(found.probs.sum(1), np.ones(N), rtol=1e-5)
    assert_allclose(found.entropy, byov.metrics.entropy(found.probs), rtol=1e-5, atol=1e-6)
    assert_allclose(found.mutual_information, byov.metrics.mutual_information(probs), atol=2e-6)
    assert_allclose(found.std, byov.metrics.predictive_std(probs), rtol=1e-4, atol=1e-6)
    assert_allclose(found.latent_variance, features.var(0).mean(-1), rtol=1e-4)
    for uncertainty in (found.std, found.entropy, found.mutual_information):
        assert uncertainty.shape == (N,)
        assert uncertainty.min() >= 0
    assert found.mutual_information.max() > 1e-4


def test_a_prediction_without_draws_is_the_probe_on_the_mean_features(trained, probed):
    found = probed.predict(IMAGES, draws=0)
    assert_allclose(
        found.probs, linear_probe.probs(probed.probe, trained.embed(IMAGES)), rtol=1e-4, atol=1e-6
    )
    assert_array_equal(found.std, np.zeros(N))
    assert_array_equal(found.mutual_information, np.zeros(N))


def test_a_probe_is_needed_and_the_error_says_where_from(trained, byov_run):
    with pytest.raises(RunError, match=r"model\.with_probe\(images, labels\), or run byov evaluate"):
        trained.predict(IMAGES)
    with pytest.raises(ValueError, match="the model has no probe to save"):
        save_probe(byov_run[0], trained)


def test_a_probe_comes_back_with_its_run(probed, byov_run, tmp_path):
    run = shutil.copytree(byov_run[0], tmp_path / "run")
    save_probe(run, probed)
    found = load(run)
    assert_same_bits(
        (found.posterior, found.stats, found.probe), (probed.posterior, probed.stats, probed.probe)
    )
    assert_same_bits(found.predict(IMAGES, draws=0), probed.predict(IMAGES, draws=0))
    save_probe(run, dataclasses.replace(probed, step=STEPS + 1))
    assert load(run).probe is None  # it belongs to features of another step


def test_untrained_is_the_network_that_training_started_from(probed, byov_run):
    found, before = probed.untrained(), byov_run[1]
    assert_same_bits((found.posterior, found.stats, found.teacher), before[1:4])
    assert (found.step, found.probe) == (0, None)
    moved = jax.tree.map(lambda one, other: bool(np.any(one != other)), found.posterior, probed.posterior)
    assert all(jax.tree.leaves(moved))


def test_models_of_one_architecture_share_a_program(trained, byol):
    assert byol.tap()[1] is trained.tap()[1]


def test_a_deterministic_model_is_certain_of_itself(byol):
    assert not byol.bayesian
    model = byol.with_probe(IMAGES, LABELS, classes=3)
    found = model.predict(IMAGES, draws=DRAWS)
    assert_array_equal(found.mutual_information, np.zeros(N))
    assert_array_equal(found.std, np.zeros(N))
    assert found.entropy.min() > 0
    assert_same_bits(found, model.predict(IMAGES, draws=0))


def test_a_supervised_model_predicts_with_its_own_head(bbb):
    assert bbb.supervised
    assert bbb.bayesian
    assert bbb.probe is None
    expected = by_hand(bbb, bbb.posterior.mean, bbb.stats)
    found = bbb.predict(IMAGES, draws=0)
    assert_allclose(found.probs, jax.nn.softmax(expected.logits), rtol=1e-4, atol=1e-6)
    assert_allclose(bbb.embed(IMAGES), expected.encoder, rtol=1e-4, atol=1e-5)
    drawn = bbb.predict(IMAGES, draws=DRAWS)
    assert_allclose(drawn.probs.sum(1), np.ones(N), rtol=1e-5)
    assert drawn.std.min() > 0
    assert drawn.mutual_information.max() > 0
    assert_allclose(drawn.latent_variance, np.zeros(N), atol=1e-12)  # its head alone is Bayesian


@pytest.mark.parametrize("images", [IMAGES[0], IMAGES[..., 0], IMAGES[:, :14], IMAGES.repeat(3, axis=3)])
def test_images_of_another_shape_are_refused(trained, bbb, images):
    for call in (trained.embed, bbb.embed, bbb.predict, lambda x: trained.with_probe(x, LABELS)):
        with pytest.raises(
            ValueError, match=r"^images are \(.*\); this model takes \[n, 28, 28, 1\]$"
        ) as error:
            call(images)
        assert str(images.shape) in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tap": "head"}, "tap='head': expected one of encoder, projector, predictor"),
        ({"tap": "predictor", "teacher": True}, "tap='predictor': this network has only encoder, projector"),
        ({"blocks": 3}, "blocks=3: the encoder has 2"),
        ({"blocks": -1}, "blocks=-1: the encoder has 2"),
        ({"blocks": 1, "tap": "projector"}, "blocks=1: only the encoder of a ViT has blocks"),
        ({"draws": -1}, "draws=-1 must be at least 1"),
    ],
)
def test_what_embed_refuses(trained, arguments, message):
    with pytest.raises(ValueError, match=message):
        trained.embed(IMAGES, **arguments)


def test_what_a_supervised_model_refuses(bbb):
    for tap in ("projector", "predictor"):
        with pytest.raises(ValueError, match=f"tap='{tap}': this network has only encoder"):
            bbb.embed(IMAGES, tap)
    with pytest.raises(ValueError, match="a supervised_bbb model has no teacher"):
        bbb.embed(IMAGES, teacher=True)


def largest(files):
    return max((file for file in files if file.is_file()), key=lambda file: file.stat().st_size)


def halve(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def set_config(run, **changes):
    file = run / run_directory.CONFIG
    config = json.loads(file.read_text())
    for key, value in changes.items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    file.write_text(json.dumps(config))


def write_probe(run, **arrays):
    files.write_npz(run / run_directory.PROBE, {"weight": np.ones((16, 3))} | arrays)


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def newest(run):
    return run / run_directory.CHECKPOINTS / str(STEPS)


CHECKPOINT = f"checkpoints/{STEPS} cannot be read: "
BROKEN = {
    "missing": (shutil.rmtree, "is not a directory"),
    "no config": (lambda run: (run / "config.json").unlink(), "is not a run directory: it has no config"),
    "config cut": (lambda run: halve(run / "config.json"), "config.json cannot be read: "),
    "config of an unknown encoder": (
        lambda run: set_config(run, encoder={"name": "cnn"}),
        "config.json is not a config of byov_jax: config.encoder.name='cnn' must be one of resnet, vit",
    ),
    "config of no network": (
        lambda run: set_config(run, encoder={"heads": 3}),
        "config.json describes no network: ",
    ),
    "config of another width": (
        lambda run: set_config(run, encoder={"width": 32}),
        CHECKPOINT + "posterior/mean/encoder/blocks_0/attention/out/bias is (16,), expected (32,)",
    ),
    "config of another method": (
        lambda run: set_config(run, method="byov"),
        CHECKPOINT + "posterior/log_var/encoder/blocks_0/attention/out/bias is absent, expected (16,)",
    ),
    "no checkpoints": (lambda run: shutil.rmtree(run / "checkpoints"), "has no finished checkpoint"),
    "no checkpoint": (lambda run: empty(run / "checkpoints"), "has no finished checkpoint in checkpoints/"),
    "no valid checkpoint": (
        lambda run: [halve(largest(step.rglob("*"))) for step in (run / "checkpoints").iterdir()],
        "no valid checkpoint in ",
    ),
    "probe of text": (
        lambda run: (run / "probe.npz").write_text("weight, bias"),
        "probe.npz cannot be read as .npz: File is not a zip file; delete it",
    ),
    "probe cut": (
        lambda run: (write_probe(run), halve(run / "probe.npz")),
        "probe.npz cannot be read as .npz: ",
    ),
    "probe without a step": (write_probe, "probe.npz is not a probe: it has no array 'step'; delete it"),
    "probe of two steps": (lambda run: write_probe(run, step=np.ones(2)), "probe.npz is not a probe: only "),
}


def refusal(run) -> str:
    """The message of the refusal: one line that names the place."""
    with pytest.raises(RunError) as error:
        load(run)
    message = str(error.value)
    assert str(run) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_run_is_one_line(byol_run, tmp_path, capfd, name):
    harm, problem = BROKEN[name]
    run = shutil.copytree(byol_run, tmp_path / "run")
    harm(run)
    assert problem in refusal(run)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "harm", [empty, lambda step: halve(largest(step.rglob("d/*")))], ids=["empty", "cut"]
)
def test_of_a_damaged_checkpoint_the_one_before_is_loaded_and_nothing_is_moved(byol_run, tmp_path, harm):
    run = shutil.copytree(byol_run, tmp_path / "run")
    harm(newest(run))
    before = sorted(run.rglob("*"))
    assert load(run).step == 1
    assert sorted(run.rglob("*")) == before
