"""The online probe learns, and does not influence training."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

import byov_jax as byov
from byov_jax.distributed import pmapped
from byov_jax.methods import online_probe

BATCH = tiny.batch(16)
KEY = jax.random.key(1)


def steps(method, count=3, batch=BATCH):
    state = method.init(jax.random.key(0), batch)
    step = jax.jit(method.step)
    for _ in range(count):
        state, info = step(state, batch, KEY)
    return state, info


def test_it_learns_separable_classes():
    rng = np.random.default_rng(0)
    label = jnp.asarray(rng.integers(0, 3, 200))
    features = jax.nn.one_hot(label, 8) + 0.1 * jnp.asarray(rng.normal(size=(200, 8)), jnp.float32)
    probe = online_probe.init(8, 3)
    assert online_probe.loss(probe.params, features, label)[0] == pytest.approx(np.log(3))

    @jax.jit
    def step(probe):
        return online_probe.update(
            probe, jax.grad(lambda p: online_probe.loss(p, features, label)[0])(probe.params)
        )

    for _ in range(300):
        probe = step(probe)
    nll, accuracy = online_probe.loss(probe.params, features, label)
    assert accuracy == 1.0
    assert nll < 0.5


def test_its_gradient_ends_at_the_features():
    params = {"weight": jnp.ones((4, 3)) * jnp.arange(3.0)[None], "bias": jnp.zeros(3)}
    features, label = jnp.arange(8.0).reshape(2, 4), jnp.asarray([0, 2])
    gradient = jax.grad(lambda x: online_probe.loss(params, x, label)[0])(features)
    np.testing.assert_array_equal(gradient, 0.0)


def test_it_does_not_change_the_run():
    (with_probe, info), (without, bare) = (
        # Adam would amplify rounding errors to the learning rate.
        steps(tiny.byov_method(optax.sgd(0.1), classes=c))
        for c in (3, 0)
    )
    assert "probe_loss" not in bare.metrics
    assert info.metrics["probe_loss"] > 0.0
    assert not without.online.params
    for part in ("posterior", "stats", "teacher"):
        actual, expected = getattr(with_probe, part), getattr(without, part)
        error = optax.tree.norm(jax.tree.map(lambda a, b: a - b, actual, expected))
        assert error < 1e-5 * optax.tree.norm(expected)


CERTAIN = {"classes": 3, "log_var": -60.0, "net": tiny.student(norm="none")}


def assert_same_gradient(first, second):
    """Adam's first update is the sign of the gradient, so compare the moments in its state."""
    assert np.abs(first.params["weight"]).max() > 0.0
    for a, b in zip(jax.tree.leaves(first.optimizer), jax.tree.leaves(second.optimizer), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-9)


@pytest.fixture(scope="module")
def whole():
    """Return state and info after one step with the whole batch on one device."""
    return steps(tiny.byov_method(**CERTAIN), count=1)


def test_accumulation_averages_its_gradient(whole):
    parts, _ = steps(tiny.byov_method(accumulate=4, **CERTAIN), count=1)
    assert_same_gradient(whole[0].online, parts.online)


def test_pmap_averages_its_gradient_loss_and_accuracy(whole):
    method = tiny.byov_method(layout=pmapped.layout("batch"), **CERTAIN)
    start = method.init(jax.random.key(0), BATCH)
    parts = jax.tree.map(lambda x: x.reshape(8, -1, *x.shape[1:]), BATCH)
    state, info = jax.pmap(method.step, axis_name="batch", in_axes=(None, 0, None))(start, parts, KEY)
    for device in (0, 7):
        assert_same_gradient(whole[0].online, jax.tree.map(lambda x, d=device: x[d], state.online))
    np.testing.assert_allclose(
        info.metrics["probe_loss"], np.full(8, whole[1].metrics["probe_loss"]), rtol=1e-5
    )
    np.testing.assert_allclose(
        info.metrics["probe_accuracy"], np.full(8, whole[1].metrics["probe_accuracy"]), rtol=1e-5
    )


@pytest.mark.parametrize("label", [-1, -3, 3, 255])
def test_rows_whose_label_is_no_class_are_left_out(label):
    params, features = online_probe.init(4, 3).params, jnp.arange(12.0).reshape(3, 4) ** 2
    value = jax.value_and_grad(online_probe.loss, has_aux=True)
    labelled = value(params, features[:2], jnp.array([0, 2]))
    chex.assert_trees_all_close(value(params, features, jnp.array([0, 2, label])), labelled, rtol=1e-6)


def test_a_batch_without_labels_does_not_move_the_probe():
    params = online_probe.init(4, 3).params
    (loss, accuracy), gradient = jax.value_and_grad(online_probe.loss, has_aux=True)(
        params, jnp.ones((2, 4)), jnp.array([-1, -1])
    )
    assert (loss, accuracy) == (0.0, 0.0)
    assert not any(np.any(leaf) for leaf in gradient.values())


def test_missing_labels_are_an_error_with_a_remedy():
    with pytest.raises(ValueError, match=r"the online probe needs labels.*classes=0"):
        steps(tiny.byol_method(classes=3), batch=byov.Batch(BATCH.image))
