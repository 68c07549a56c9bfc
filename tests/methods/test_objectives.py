"""Objectives of one's own: SimSiam and VICReg as the docs have them, many views, any network, any dtype."""

import inspect
import re
from pathlib import Path

import chex
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax import nnx

import byov_jax as byov
from byov_jax import images, methods, networks, posterior
from byov_jax.data.sources import fashion_mnist
from byov_jax.evaluation import predictive, pruning
from byov_jax.methods import Bayes, Outcome, objectives, teacher

DOCS = Path(__file__).parents[2] / "docs/objectives.md"
BATCH = tiny.batch()
KEY = jax.random.key(7)
SGD = optax.sgd(0.1)


@pytest.fixture(scope="module")
def page():
    """Everything that the page defines, after running all of its examples in order."""
    namespace: dict = {}
    for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL):
        exec(compile(code, str(DOCS), "exec"), namespace)
    return namespace


def run(method, steps=2, batch=BATCH):
    state = method.init(jax.random.key(0), batch)
    step = jax.jit(method.step)
    for _ in range(steps):
        state, info = step(state, batch, KEY)
    return state, info


def test_the_page_runs(page):
    assert np.isfinite(page["info"].loss)
    assert page["info"].skipped == 0


def test_the_examples_are_short():
    for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL):
        assert len(code.splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("bayes", [None, Bayes(dataset_size=2000, beta=0.3)], ids=["points", "posterior"])
@pytest.mark.parametrize("name", ["simsiam", "vicreg"])
def test_simsiam_and_vicreg_train(page, name, bayes):
    student = networks.Student(
        networks.ViT(patch=7, width=32, depth=1, heads=2, pool="mean", positions="sincos", init_std=0.15),
        networks.MLP((64, 32)),
        networks.MLP((64, 32)),
    )
    method = methods.from_objective(
        student, page[name](student), optax.adam(2e-3), views=images.small_gray(), bayes=bayes
    )
    data = byov.Batch(fashion_mnist.load().train.image[:2000])
    progress = list(tiny.train(method, data, seed=0, steps=100, batch_size=64))
    losses = [float(p.info.loss) for p in progress]
    assert np.mean(losses[-20:]) < np.mean(losses[:5]) - 0.1 * abs(np.mean(losses[:5]))
    state, info = progress[-1].placed, progress[-1].info
    assert info.skipped == 0
    if bayes is None:
        assert posterior.size(state.posterior) == 0
        return
    assert np.isfinite(info.kl)
    assert info.kl > 0.0
    first, second = (posterior.sample(jax.random.key(seed), state.posterior) for seed in (0, 1))
    difference = jax.tree.map(lambda a, b: np.mean(np.abs(a - b)), first, second)
    assert all(value > 1e-4 for value in jax.tree.leaves(difference))


def test_byol_and_byov_are_uses_of_the_general_method():
    student = tiny.student()
    general = methods.from_objective(
        student,
        objectives.bootstrap(student),
        SGD,
        views=tiny.exposures,
        tau=0.9,
        bayes=Bayes(dataset_size=64, beta=1.0),
    )
    a, _ = run(general)
    b, _ = run(tiny.byov_method(SGD, net=student))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert general.traits == methods.Traits(bayesian=True, supervised=False, has_teacher=True, views=2)


def test_multi_crop_predicts_each_target_from_all_other_views():
    student = tiny.student(tiny.vit(), norm="layer")

    def four_views(keys, image):
        x1, x2 = tiny.exposures(keys, image)
        return x1, x2, x1[:, :4, :4], x2[:, 4:, 4:]

    method = tiny.byol_method(SGD, net=student, views=four_views)
    state = method.init(jax.random.key(0), BATCH)
    _, info = jax.jit(method.step)(state, BATCH, KEY)

    streams = jax.random.split(jax.random.fold_in(KEY, 0), 3)
    views = four_views(images.image_keys(streams[0], jnp.arange(16)), BATCH.image)
    taps = [student.apply({"params": state.posterior.mean}, x, train=True) for x in views]
    expected = 0.0
    for target in range(2):
        z = taps[target].projector  # the teacher starts as the student
        others = [taps[i].predictor for i in range(4) if i != target]
        cosine = np.mean([optax.cosine_similarity(p, z) for p in others], axis=0)
        expected += np.mean(2.0 - 2.0 * cosine)
    np.testing.assert_allclose(info.loss, expected, rtol=1e-5)


def test_an_objective_without_embeddings_or_features_has_no_monitor_and_no_probe():
    def objective(weights, inputs):
        return jnp.mean(jnp.square(weights[0]["w"])), Outcome({})

    class Nothing(nn.Module):
        @nn.compact
        def __call__(self, x):
            return self.param("w", nn.initializers.ones, (3,))

    method = methods.from_objective(Nothing(), objective, SGD, views=tiny.exposures)
    _, info = run(method)
    assert info.embedding_std is None
    assert "embedding_std" not in info.to_dict()
    np.testing.assert_allclose(info.loss, (1.0 - 0.2 / 3.0) ** 2, rtol=1e-6)


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(4, 8, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.out(self.dropout(x.mean((1, 2))))


def make_nnx(rngs):
    return NNXNet(rngs)


class EquinoxNet(eqx.Module):
    blocks: eqx.nn.Sequential

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.blocks = eqx.nn.Sequential(
            [
                eqx.nn.Lambda(jnp.ravel),
                eqx.nn.Linear(64, 8, key=first),
                eqx.nn.LayerNorm(8),
                eqx.nn.Linear(8, 8, key=second),
            ]
        )

    def __call__(self, x):
        return self.blocks(x)


class Regularised(nn.Module):
    """Dropout, a stream and a collection of its own, and no `train` argument."""

    @nn.compact
    def __call__(self, x, deterministic=True):
        calls = self.variable("counter", "calls", lambda: jnp.zeros((), jnp.int32))
        if not self.is_initializing() and self.is_mutable_collection("counter"):
            calls.value += 1
        x = nn.Dense(8)(x.reshape(len(x), -1))
        if not deterministic:
            x += 0.01 * jax.random.normal(self.make_rng("jitter"), x.shape)
        return nn.Dropout(0.2, deterministic=deterministic)(x)


ENCODERS = {
    "nnx": lambda: networks.from_nnx(make_nnx),
    "equinox": lambda: networks.from_equinox(EquinoxNet),
    "linen with dropout and collections": Regularised,
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("method", ["byol", "byov", "supervised", "supervised_bbb"])
def test_all_methods_train_networks_of_any_library(name, method):
    traits = methods.TRAITS[method]
    encoder = ENCODERS[name]()
    net = networks.Classifier(encoder, classes=3) if traits.supervised else tiny.student(encoder)
    fields = {"views": tiny.exposures}
    fields |= {"dataset_size": 64, "beta": 0.3, "where": "linear_only"} if traits.bayesian else {}
    fields |= {"tau": 0.9} if traits.has_teacher else {}
    state, info = run(getattr(methods, method)(net, optax.adam(1e-2), **fields), steps=3)
    assert info.skipped == 0
    assert np.isfinite(info.loss)
    if name.startswith("linen"):
        assert state.stats["counter"]["encoder"]["calls"] == 3
    if not traits.bayesian:
        return
    biased = [k for k, v in state.posterior.log_var["encoder"].items() if jax.tree.leaves(v)]
    assert biased
    variables = posterior.Posterior(
        {"params": state.posterior.mean, **state.stats},
        {"params": state.posterior.log_var, **jax.tree.map(lambda _: None, state.stats)},
    )
    x = jnp.asarray(BATCH.image, jnp.float32) / 255.0
    draws = predictive.predict(KEY, variables, lambda v, x: net.apply(v, x).encoder, x, draws=3)
    assert draws.shape == (3, 16, 8)
    assert np.all(np.std(draws, axis=0).mean() > 0.0)
    mask = pruning.snr_mask(state.posterior, keep=0.5)
    assert 0.4 < pruning.sparsity(mask).overall.kept_fraction < 0.6


def test_where_presets_follow_the_network_not_its_names():
    net = tiny.student(networks.from_nnx(make_nnx))
    linear, _ = run(tiny.byov_method(net=net, where="linear_only"), steps=1)
    log_var = linear.posterior.log_var["encoder"]
    assert log_var["conv"] == {"kernel": None, "bias": None}
    assert log_var["norm"] == {"scale": None, "bias": None}
    assert log_var["out"]["kernel"].shape == (4, 8)
    no_conv, _ = run(tiny.byov_method(net=net, where="no_conv"), steps=1)
    assert no_conv.posterior.log_var["encoder"]["norm"]["scale"] is not None
    assert no_conv.posterior.log_var["encoder"]["conv"]["kernel"] is None


def test_running_statistics_move_once_in_a_step():
    """Draws and micro-batches start from the same statistics; their mean is one update."""
    start = tiny.byol_method(SGD).init(jax.random.key(0), BATCH)
    once, _ = run(tiny.byol_method(SGD), steps=1)
    split, _ = run(tiny.byol_method(SGD, accumulate=4), steps=1)
    drawn, _ = run(tiny.byov_method(SGD, log_var=-60.0, draws=3), steps=1)
    momentum = 0.9

    def batch_mean(old, new):
        return (np.asarray(new) - momentum * np.asarray(old)) / (1.0 - momentum)

    def means(state):
        return state.stats["batch_stats"]["projector"]["norm_0"]["mean"]

    # The mean over the whole batch is the mean of the means of its quarters.
    np.testing.assert_allclose(
        batch_mean(means(start), means(split)), batch_mean(means(start), means(once)), rtol=1e-4, atol=1e-6
    )
    # Draws without variance all see the statistics of one.
    chex.assert_trees_all_close(drawn.stats, once.stats, rtol=1e-5, atol=1e-6)


class Normalized(nn.Module):
    """Batch norm alone: its batch means are those of what it is given."""

    @nn.compact
    def __call__(self, x, *, train=False):
        return nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)


def test_running_statistics_of_known_numbers():
    """Two views with means 3 and 7, variances 4 and 16: from mean 0 and variance 1, by hand.

    .9 * 0 + .1 * (3 + 7) / 2 = .5 and .9 * 1 + .1 * (4 + 16) / 2 = 1.9. DeepMind's updates follow one
    another: .9 * (.9 * 0 + .1 * 3) + .1 * 7 = .97 and .9 * (.9 * 1 + .1 * 4) + .1 * 16 = 2.77. The teacher's
    start from 10 and 20: 9 + .5 = 9.5 and 18 + 1 = 19.
    """
    network = Normalized()
    views = (jnp.array([[1.0], [5.0]]), jnp.array([[3.0], [11.0]]))
    variables = network.init(KEY, views[0])
    params, stats = variables.pop("params"), variables
    own = {"batch_stats": {"BatchNorm_0": {"mean": jnp.full(1, 10.0), "var": jnp.full(1, 20.0)}}}
    inputs = objectives.Inputs(views, None, stats, teacher.Teacher(params, own), KEY)
    _, updated = objectives.forward(network, (params, params), inputs)
    _, updated_own = objectives.targets(network, inputs, views, method="__call__")
    for found, mean, var in ((updated, 0.5, 1.9), (updated_own, 9.5, 19.0)):
        running = found["batch_stats"]["BatchNorm_0"]
        np.testing.assert_allclose(running["mean"], [mean], rtol=1e-6)
        np.testing.assert_allclose(running["var"], [var], rtol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}], ids=["whole", "micro-batches"])
def test_the_teacher_has_statistics_of_its_own_forward_passes(settings):
    """From a mean of 0, one step of momentum .9: a tenth of the mean of its hidden layer over both views."""
    method = tiny.byol_method(SGD, views=lambda keys, image: (image / 255.0, 1.0 - image / 255.0), **settings)
    start = method.init(jax.random.key(0), BATCH)
    away = jax.tree.map(lambda x: 2.0 * x, start.teacher.params)
    state, _ = jax.jit(method.step)(start._replace(teacher=start.teacher._replace(params=away)), BATCH, KEY)
    image = np.asarray(BATCH.image, np.float64).reshape(len(BATCH.image), -1) / 255.0
    encoder, first = (jax.tree.map(np.asarray, away[part]) for part in ("encoder", "projector"))
    features = [
        np.maximum(x @ encoder["Dense_0"]["kernel"] + encoder["Dense_0"]["bias"], 0)
        for x in (image, 1.0 - image)
    ]
    hidden = [x @ first["dense_0"]["kernel"] + first["dense_0"]["bias"] for x in features]
    expected = 0.1 * np.mean(hidden, axis=(0, 1))
    found = state.teacher.stats["batch_stats"]["projector"]["norm_0"]["mean"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert not np.allclose(state.stats["batch_stats"]["projector"]["norm_0"]["mean"], expected, rtol=0.1)


@pytest.mark.parametrize("make", [tiny.byol_method, tiny.byov_method])
def test_no_step_reads_running_statistics(make):
    """So how they are updated can only change an evaluation."""
    net = tiny.student(networks.ResNet((1,), False, width=8, stem="small"))
    method = make(SGD, net=net)
    state = method.init(jax.random.key(0), BATCH)
    other = jax.tree.map(lambda x: 3.0 * x + 1.0, (state.stats, state.teacher.stats))
    changed = state._replace(stats=other[0], teacher=state.teacher._replace(stats=other[1]))
    step = jax.jit(method.step)
    (a, info_a), (b, info_b) = step(state, BATCH, KEY), step(changed, BATCH, KEY)
    assert "encoder" in a.teacher.stats["batch_stats"]
    jax.tree.map(np.testing.assert_array_equal, a.posterior, b.posterior)
    jax.tree.map(np.testing.assert_array_equal, a.teacher.params, b.teacher.params)
    jax.tree.map(np.testing.assert_array_equal, info_a, info_b)
    with pytest.raises(AssertionError):
        jax.tree.map(np.testing.assert_array_equal, a.stats, b.stats)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("make", [tiny.byol_method, tiny.byov_method])
def test_steps_are_scanned_for_every_dtype_of_the_parameters(make, dtype):
    class Half(nn.Module):
        @nn.compact
        def __call__(self, x, *, train=False):
            return nn.Dense(8, param_dtype=dtype, dtype=dtype)(x.reshape(len(x), -1).astype(dtype))

    method = make(optax.adam(1e-5), net=tiny.student(Half()))
    state = method.init(jax.random.key(0), BATCH)
    weights = state.posterior, state.teacher.params
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(weights))

    @jax.jit
    def train(state):
        return jax.lax.scan(lambda state, _: method.step(state, BATCH, KEY), state, length=3)

    last, info = train(state)
    assert np.all(np.isfinite(info.loss))
    before, after = (s.posterior.mean["encoder"]["Dense_0"]["kernel"] for s in (state, last))
    assert np.mean(before != after) > 0.5  # updates far below bfloat16's resolution are not lost


def test_the_four_methods_share_the_arguments_of_the_general_one():
    for name in methods.TRAITS:
        parameters = inspect.signature(getattr(methods, name)).parameters
        assert "views" in parameters
        assert parameters["others"].kind is inspect.Parameter.VAR_KEYWORD
    with pytest.raises(TypeError, match="unexpected keyword argument 'spikes'"):
        tiny.byol_method(SGD, spikes=3.0)


def test_a_network_is_traced_once_for_all_views_of_one_shape():
    traced = []

    class Recorded(nn.Module):
        @nn.compact
        def __call__(self, x, *, train=False):
            traced.append(x.shape)
            return nn.Dense(8)(x.reshape(len(x), -1))

    method, batch, key = tiny.byol_method(net=tiny.student(Recorded())), tiny.batch(), jax.random.key(0)
    state = jax.eval_shape(method.init, key, batch)
    traced.clear()
    jax.eval_shape(method.step, state, batch, key)
    assert traced == [(16, 8, 8, 1)] * 2  # by the student and by the teacher
