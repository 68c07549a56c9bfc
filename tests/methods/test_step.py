"""The training step: loss, KL, gradients, teacher, prior, accumulation, randomness and errors."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

import byov_jax as byov
from byov_jax import images, networks
from byov_jax.methods import objectives

KEY = jax.random.key(7)
BATCH = tiny.batch()
PRIORS = {
    "standard": byov.priors.standard,
    "teacher_mean": byov.priors.teacher_mean,
    "teacher_moments": byov.priors.teacher_moments,
}
SGD = optax.sgd(1.0)


def run(method, steps=1, batch=BATCH, key=KEY, state=None):
    state = method.init(jax.random.key(0), batch) if state is None else state
    step = jax.jit(method.step)
    for _ in range(steps):
        state, info = step(state, batch, key)
    return state, info


def assert_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def assert_equal(a, b):
    chex.assert_trees_all_equal(a, b)


def difference(new, old):
    return jax.tree.map(lambda x, y: x - y, new, old)


@pytest.fixture(scope="module")
def byov_after_one_step():
    return run(tiny.byov_method())


def test_info_reports_the_terms_of_the_objective(byov_after_one_step):
    state, info = byov_after_one_step
    weights = byov.posterior.size(state.posterior)
    assert 0.0 <= info.loss <= 8.0
    np.testing.assert_allclose(info.metrics["cosine"], 1.0 - info.loss / 4.0, rtol=1e-5)
    np.testing.assert_allclose(info.kl_per_weight, info.kl / weights, rtol=1e-6)
    np.testing.assert_allclose(info.kl_per_weight, 4.5, atol=0.1)
    np.testing.assert_allclose(info.kl_scaled, info.kl / weights, rtol=1e-6)
    np.testing.assert_allclose(info.temperature, 64 / weights, rtol=1e-6)
    np.testing.assert_allclose(info.learning_rate, 1e-3, rtol=1e-6)
    assert set(info.metrics) == {"cosine"}
    np.testing.assert_allclose(info.implied_l2, 1.0 / weights, rtol=1e-6)
    assert info.beta == 1.0
    assert info.tau == np.float32(0.9)
    assert info.gradient_norm > 0.0
    assert 0.0 < info.embedding_std <= 1.0


@pytest.mark.parametrize(("kl_norm", "z"), [("dataset", 64), ("batches", 4)])
def test_the_kl_is_divided_by_the_chosen_normaliser(kl_norm, z):
    _, info = run(tiny.byov_method(SGD, beta=0.5, kl_norm=kl_norm))
    np.testing.assert_allclose(info.kl_scaled, 0.5 * info.kl / z, rtol=1e-6)
    np.testing.assert_allclose(info.temperature, 0.5 * 64 / z, rtol=1e-6)


def test_without_variance_and_without_kl_byov_is_byol():
    certain, _ = run(tiny.byov_method(SGD, views=tiny.REAL_VIEWS, beta=0.0, log_var=-60.0), steps=3)
    point, _ = run(tiny.byol_method(SGD, views=tiny.REAL_VIEWS), steps=3)
    assert_close(certain.posterior.mean, point.posterior.mean, rtol=1e-5, atol=1e-6)
    assert_close(certain.teacher, point.teacher, rtol=1e-5, atol=1e-6)
    assert_close(certain.stats, point.stats, rtol=1e-5, atol=1e-6)


def test_the_loss_is_summed_over_both_directions_and_uses_one_draw():
    method = tiny.byov_method(log_var=-4.0)
    state = method.init(jax.random.key(0), BATCH)
    _, info = jax.jit(method.step)(state, BATCH, KEY)

    streams = jax.random.split(jax.random.fold_in(KEY, 0), 3)
    keys = images.image_keys(streams[0], jnp.arange(16))
    x1, x2 = tiny.exposures(keys, BATCH.image)
    weights = byov.posterior.sample(jax.random.fold_in(streams[1], 0), state.posterior)
    net = tiny.student()

    def prediction(x):
        taps, _ = net.apply({"params": weights, **state.stats}, x, train=True, mutable=["batch_stats"])
        return taps.predictor

    def target(x):
        variables = {"params": state.teacher.params, **state.teacher.stats}
        (_, z), _ = net.apply(variables, x, train=True, mutable=["batch_stats"], method="project")
        return z

    def distance(p, z):
        p, z = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (p, z))
        return 2.0 - 2.0 * np.sum(p * z, axis=-1)

    expected = np.mean(distance(prediction(x1), target(x2)) + distance(prediction(x2), target(x1)))
    np.testing.assert_allclose(info.loss, expected, rtol=1e-5)


def test_the_kl_gradient_is_that_of_the_closed_form():
    variance = byov.variance.gradient(SGD)
    with_kl, _ = run(tiny.byov_method(SGD, beta=0.7, kl_norm="none", variance=variance))
    without, _ = run(tiny.byov_method(SGD, beta=0.0, kl_norm="none", variance=variance))
    start = tiny.byov_method(SGD).init(jax.random.key(0), BATCH)
    expected = jax.tree.map(lambda g: -0.7 * g, jax.grad(byov.posterior.kl)(start.posterior))
    error = difference(difference(with_kl.posterior, without.posterior), expected)
    # The data term is compiled in two programs, which differ by rounding.
    rounding = optax.tree.norm(difference(without.posterior, start.posterior))
    assert optax.tree.norm(error) < 1e-5 * max(rounding, optax.tree.norm(expected))


def test_a_step_is_a_pure_function(byov_after_one_step):
    state, info = run(tiny.byov_method())
    assert_equal(state, byov_after_one_step[0])
    assert_equal(info, byov_after_one_step[1])


def test_the_same_root_key_gives_new_noise_at_every_step():
    method = tiny.byov_method(SGD, log_var=-2.0)
    state = method.init(jax.random.key(0), BATCH)
    step = jax.jit(method.step)
    _, first = step(state, BATCH, KEY)
    _, second = step(state._replace(step=state.step + 1), BATCH, KEY)
    assert first.loss != second.loss


def test_raw_keys_are_accepted(byov_after_one_step):
    state, _ = run(tiny.byov_method(), key=jax.random.PRNGKey(7))
    assert_equal(state, byov_after_one_step[0])


@pytest.mark.parametrize("prior", PRIORS)
def test_compiled_once_and_donated_over_ten_steps(prior):
    method = tiny.byov_method(prior=PRIORS[prior](), beta=byov.schedules.cosine(0.0, 1.0, 10))
    chex.clear_trace_counter()

    def traced(*arguments):
        return method.step(*arguments)

    step = jax.jit(chex.assert_max_traces(traced, n=1), donate_argnums=0)
    state = method.init(jax.random.key(0), BATCH)
    for _ in range(10):
        old = state
        state, info = step(state, BATCH, KEY)
    assert state.step == 10
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((state, info)))


def test_the_teacher_depends_on_the_mean_only():
    method = tiny.byov_method(SGD, tau=0.25)
    start = method.init(jax.random.key(0), BATCH)
    state, _ = run(method, state=start)
    for part in ("encoder", "projector"):
        expected = jax.tree.map(
            lambda old, new: 0.25 * old + 0.75 * new, start.teacher.params[part], state.posterior.mean[part]
        )
        assert_close(state.teacher.params[part], expected, rtol=1e-6)
    assert set(state.teacher.params) == {"encoder", "projector"}


def test_no_gradient_reaches_the_teacher():
    method = tiny.byov_method(SGD)
    state = method.init(jax.random.key(0), BATCH)

    def loss(teacher_params):
        moved = state._replace(teacher=state.teacher._replace(params=teacher_params))
        return method.step(moved, BATCH, KEY)[1].loss

    gradient = jax.jit(jax.grad(loss))(state.teacher.params)
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(gradient))


def test_tau_one_freezes_the_teacher_and_tau_zero_copies_the_mean():
    frozen_method = tiny.byov_method(tau=1.0)
    start = frozen_method.init(jax.random.key(0), BATCH)
    assert_equal(run(frozen_method, state=start)[0].teacher.params, start.teacher.params)
    copied, _ = run(tiny.byov_method(tau=0.0))
    assert_equal(copied.teacher.params, {part: copied.posterior.mean[part] for part in copied.teacher.params})


def test_priors_update_with_the_teacher():
    method = tiny.byov_method(prior=byov.priors.teacher_moments(), tau=0.8)
    start = method.init(jax.random.key(0), BATCH)
    state, info = run(method, state=start)
    np.testing.assert_allclose(info.kl, 0.0, atol=0.5)  # q starts at the prior

    def expected(old, new):
        return 0.8 * (np.exp(-10.0) + 0.2 * np.square(new - old))

    old = {**start.teacher.params, **start.prior.mean}
    assert_close(
        state.prior.variance, jax.tree.map(expected, old, state.posterior.mean), rtol=1e-5, atol=1e-12
    )
    assert set(state.prior.mean) == {"predictor"}


class GroupNormed(nn.Module):
    """A convolution and a norm over groups of its channels."""

    @nn.compact
    def __call__(self, x, *, train=False):
        return nn.relu(nn.GroupNorm(2)(nn.Conv(4, (3, 3))(x))).mean((1, 2))


@pytest.mark.parametrize("encoder", [tiny.Encoder(), GroupNormed()], ids=["layer norm", "group norm"])
def test_gradient_accumulation_is_one_step_of_the_whole_batch(encoder):
    net = tiny.student(encoder, norm="layer")
    whole, a = run(tiny.byov_method(SGD, net=net, tau=0.5), steps=2)
    split, b = run(tiny.byov_method(SGD, net=net, tau=0.5, accumulate=4), steps=2)
    assert split.step == 2
    assert_close(split.posterior, whole.posterior, rtol=1e-4, atol=1e-6)
    assert_close(split.teacher, whole.teacher, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(b.loss, a.loss, rtol=1e-5)
    np.testing.assert_allclose([b.beta, b.tau, b.kl], [a.beta, a.tau, a.kl], rtol=1e-5)


def test_many_draws_average_the_loss():
    fields = {"net": tiny.student(norm="layer"), "log_var": -3.0}
    start = tiny.byov_method(SGD, **fields).init(jax.random.key(0), BATCH)
    _, four = run(tiny.byov_method(SGD, draws=4, **fields), state=start)

    streams = jax.random.split(jax.random.fold_in(KEY, 0), 3)
    objective = objectives.bootstrap(fields["net"])
    views = tiny.exposures(images.image_keys(streams[0], jnp.arange(16)), BATCH.image)
    inputs = objectives.Inputs(views, None, {}, start.teacher, streams[2])
    losses = []
    for draw in range(4):
        weights = byov.posterior.sample(jax.random.fold_in(streams[1], draw), start.posterior)
        losses.append(objective((weights, weights), inputs)[0])
    assert np.std(losses) > 1e-3
    np.testing.assert_allclose(four.loss, np.mean(losses), rtol=1e-5)


def test_draw_per_view_samples_separate_weights():
    method = tiny.byov_method(SGD, net=tiny.student(norm="layer"), log_var=-3.0, draw_per_view=True)
    start = method.init(jax.random.key(0), BATCH)
    _, info = run(method, state=start)

    streams = jax.random.split(jax.random.fold_in(KEY, 0), 3)
    x = tiny.exposures(images.image_keys(streams[0], jnp.arange(16)), BATCH.image)
    net = tiny.student(norm="layer")
    predictions = [
        net.apply({"params": byov.posterior.sample(key, start.posterior)}, view, train=True).predictor
        for key, view in zip(jax.random.split(jax.random.fold_in(streams[1], 0)), x, strict=True)
    ]
    targets = [net.apply({"params": start.teacher.params}, view, method="project")[1] for view in x]
    cosines = [optax.cosine_similarity(p, z) for p, z in zip(predictions, reversed(targets), strict=True)]
    np.testing.assert_allclose(info.loss, np.mean(4.0 - 2.0 * sum(cosines)), rtol=1e-5)


def test_where_leaves_point_estimates_without_variance():
    state, info = run(tiny.byov_method(net=tiny.student(tiny.vit()), where="linear_only"))
    assert state.posterior.log_var["encoder"]["patch_embedding"] == {"kernel": None, "bias": None}
    assert state.posterior.log_var["encoder"]["norm"] == {"scale": None, "bias": None}
    assert np.isfinite(info.loss)


def test_drop_path_is_random_and_derives_from_the_key():
    method = tiny.byol_method(SGD, net=tiny.student(tiny.vit(depth=2, drop_path=0.5)))
    a, b, c = (run(method, key=jax.random.key(seed))[1].loss for seed in (0, 0, 1))
    assert a == b
    assert a != c


def test_a_frozen_patch_projection_never_moves():
    method = tiny.byov_method(net=tiny.student(tiny.vit(frozen_patch=True)))
    start = method.init(jax.random.key(0), BATCH)
    state, _ = run(method, steps=2, state=start)
    assert_equal(state.stats["frozen"], start.stats["frozen"])
    assert_equal(state.teacher.stats["frozen"], start.stats["frozen"])


@pytest.mark.parametrize("size", [1, 5])
def test_batches_of_any_size(size):
    _, info = run(tiny.byov_method(net=tiny.student(norm="layer")), batch=tiny.batch(size))
    assert np.isfinite(info.loss)


def test_images_not_divisible_by_the_patch_are_refused():
    batch = byov.Batch(jnp.zeros((4, 10, 10, 1), jnp.uint8))
    method = byov.methods.byol(tiny.student(tiny.vit()), SGD, views=images.small_gray(size=10), tau=0.9)
    with pytest.raises(ValueError, match="10x10 image does not divide into patches of 4x4"):
        method.init(jax.random.key(0), batch)


def test_a_batch_that_cannot_be_split_is_refused():
    with pytest.raises(ValueError, match="accumulate=3 does not divide the batch of 16"):
        run(tiny.byov_method(accumulate=3))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beta": -1.0}, "beta=-1.0 must be 0 or more"),
        ({"beta": float("inf")}, "beta=inf must be a finite number"),
        ({"tau": 1.5}, r"tau=1.5 must be in \[0, 1\]"),
        ({"kl_norm": "mean"}, "kl_norm='mean' is not one of"),
        ({"draws": 0}, "draws=0 must be at least 1"),
        ({"draws": 1.5}, "draws=1.5 must be an integer"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"dataset_size": 0}, "dataset_size=0"),
        ({"dataset_size": 10.5}, "dataset_size=10.5 must be an integer"),
        ({"log_var": 50.0}, r"log_var=50.0 must be in \[-100, 0\]"),
        ({"log_var": 0.01}, r"log_var=0.01 must be in \[-100, 0\]"),
        ({"spike": 0.5}, "spike=0.5 must be at least 1, or 0 for none"),
        ({"prior": "standard"}, r"prior='standard' must be a Prior, such as priors.standard\(\)"),
        ({"variance": optax.adam(1e-3)}, r"must be a VarianceRule, such as variance.adam\(\)"),
    ],
)
def test_bad_settings_are_named_where_they_enter(fields, message):
    bayes = {name: fields.pop(name) for name in list(fields) if name in byov.methods.Bayes._fields}
    student = tiny.student()
    fields = {"tau": 0.9, "views": tiny.exposures} | fields
    with pytest.raises(ValueError, match=message):
        byov.methods.from_objective(
            student,
            objectives.bootstrap(student),
            SGD,
            bayes=byov.methods.Bayes(**({"dataset_size": 64, "beta": 1.0} | bayes)),
            **fields,
        )


def test_a_teacher_needs_a_momentum():
    """Without one it would stay as it starts."""
    student, traits = tiny.student(), byov.methods.TRAITS["byol"]
    with pytest.raises(ValueError, match="tau=None must be a finite number"):
        byov.methods.from_objective(
            student, objectives.bootstrap(student), SGD, views=tiny.exposures, traits=traits
        )


@pytest.mark.parametrize("prior", [byov.priors.teacher_mean(), byov.priors.teacher_moments()])
def test_a_prior_that_follows_the_means_needs_a_momentum(prior):
    student, bayes = tiny.student(), byov.methods.Bayes(64, 1.0, prior)
    with pytest.raises(ValueError, match="tau=None must be a finite number"):
        byov.methods.from_objective(
            student, objectives.bootstrap(student), SGD, views=tiny.exposures, bayes=bayes
        )


def test_supervised_methods_share_the_step():
    fields = {"views": tiny.exposures}
    plain = byov.methods.supervised(tiny.classifier(), SGD, **fields)
    bayesian = byov.methods.supervised_bbb(
        tiny.classifier(), SGD, dataset_size=64, beta=0.0, log_var=-60.0, **fields
    )
    a, info = run(plain, steps=2)
    b, _ = run(bayesian, steps=2)
    assert_close(a.posterior.mean, b.posterior.mean, rtol=1e-5, atol=1e-6)
    assert set(info.metrics) == {"accuracy"}
    assert 0.0 <= info.metrics["accuracy"] <= 1.0
    np.testing.assert_allclose(run(plain)[1].loss, np.log(3.0), atol=0.1)
    assert jax.tree.leaves(a.teacher) == []


def test_without_a_teacher_the_prior_averages_the_whole_mean():
    method = byov.methods.supervised_bbb(
        tiny.classifier(),
        SGD,
        views=tiny.exposures,
        dataset_size=64,
        beta=0.1,
        prior=byov.priors.teacher_moments(),
    )
    state, info = run(method, steps=2)
    assert info.kl > 0.0
    assert set(state.prior.mean) == {"encoder", "head"}


def test_supervised_methods_need_labels():
    method = byov.methods.supervised(tiny.classifier(), SGD, views=tiny.exposures)
    with pytest.raises(ValueError, match="need labels"):
        run(method, batch=byov.Batch(BATCH.image))


@pytest.mark.parametrize("label", [-1, -3, 3, 255])
def test_a_label_that_is_no_class_is_never_learned(label):
    method = byov.methods.supervised(tiny.classifier(), SGD, views=tiny.exposures)
    start = method.init(jax.random.key(0), BATCH)
    state, info = run(method, batch=BATCH._replace(label=BATCH.label.at[0].set(label)), state=start)
    assert np.isnan(info.loss)
    assert info.skipped == 1
    assert_equal(state.posterior, start.posterior)


def test_a_resnet_student_trains():
    net = networks.Student(
        networks.ResNet((1,), False, width=8, stem="small"), networks.MLP((8, 4)), networks.MLP((8, 4))
    )
    state, info = run(tiny.byov_method(net=net), steps=2)
    assert np.isfinite(info.loss)
    assert "encoder" in state.teacher.stats["batch_stats"]


def test_a_posterior_does_not_blow_up_the_program(optimized):
    """BYOV has at most 1.6 times the instructions of BYOL; each of two mistakes made it five times."""
    net = tiny.student(tiny.vit(depth=3), norm="layer")
    counts = {}
    for method in (tiny.byol_method(net=net), tiny.byov_method(net=net)):
        state = jax.eval_shape(method.init, jax.random.key(0), BATCH)
        program = jax.jit(method.step).lower(state, BATCH, jax.random.key(0)).compile().as_text()
        counts[method.traits.bayesian] = sum(" = " in line for line in program.splitlines())
    assert counts[True] < 1.6 * counts[False]
