"""One step on 1 and on 8 devices: the same gradients, statistics and teacher."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import byov_jax as byov
from byov_jax import images
from byov_jax.distributed import pmapped
from byov_jax.methods import objectives

pytestmark = pytest.mark.usefixtures("optimized")
DEVICES = 8
BATCH = tiny.batch(32)
KEY = jax.random.key(3)
SGD = optax.sgd(1.0)  # the update is the gradient
NOISE = 100 * np.finfo(np.float32).eps
CERTAIN = {"log_var": -60.0, "kl_norm": "dataset", "beta": 0.5}


def one_device(method):
    start = method.init(jax.random.key(0), BATCH)
    return start, *jax.jit(method.step)(start, BATCH, KEY)


def assert_same(got, expected, start):
    """Compare gradients, statistics and teacher, each as one vector, to float32 rounding.

    Not leaf by leaf: a bias before a batch norm has gradient 0 up to rounding. The teacher
    moves by 1 - tau of the student's step, and so does its rounding error.
    """
    step = distance(start, expected, "posterior")
    for part, change in (
        ("posterior", step),
        ("stats", distance(start, expected, "stats")),
        ("teacher", 0.1 * step),
    ):
        error = distance(got, expected, part)
        assert change > 0.0
        assert error < NOISE * change, f"{part}: relative error {error / change}"
    assert distance(start, expected, "teacher") > 1000 * NOISE * step


def distance(one, other, part):
    return optax.tree.norm(jax.tree.map(lambda x, y: x - y, getattr(one, part), getattr(other, part)))


def first(tree):
    return jax.tree.map(lambda x: x[0], tree)


def split(batch):
    return jax.tree.map(lambda x: x.reshape(DEVICES, -1, *x.shape[1:]), batch)


def test_pmap_gives_the_gradients_of_one_device():
    start, expected, expected_info = one_device(tiny.byov_method(SGD, **CERTAIN))
    method = tiny.byov_method(
        SGD, net=tiny.student(axis_name="batch"), layout=pmapped.layout("batch"), **CERTAIN
    )
    step = jax.pmap(method.step, axis_name="batch", in_axes=(None, 0, None))
    state, info = step(start, split(BATCH), KEY)
    assert_same(first(state), expected, start)
    np.testing.assert_allclose(info.loss, np.full(DEVICES, expected_info.loss), rtol=1e-5)
    np.testing.assert_allclose(info.kl_scaled, np.full(DEVICES, expected_info.kl_scaled), rtol=1e-6)
    np.testing.assert_allclose(info.temperature, np.full(DEVICES, expected_info.temperature), rtol=1e-6)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape)), state)


def test_every_device_of_a_pmap_draws_its_own_weights():
    fields = {"log_var": -3.0, "beta": 0.0}
    net = tiny.student(norm="layer")
    method = tiny.byov_method(SGD, net=net, layout=pmapped.layout("batch"), **fields)
    start = method.init(jax.random.key(0), BATCH)
    _, info = jax.pmap(method.step, axis_name="batch", in_axes=(None, 0, None))(start, split(BATCH), KEY)

    views_key, weights_key, drop_key = jax.random.split(jax.random.fold_in(KEY, 0), 3)
    objective = jax.jit(objectives.bootstrap(net))
    losses = []
    for device in range(DEVICES):
        rows = jnp.arange(4) + 4 * device
        part = jax.tree.map(lambda x, rows=rows: x[rows], BATCH)
        draw = jax.random.fold_in(jax.random.fold_in(weights_key, device), 0)
        weights = byov.posterior.sample(draw, start.posterior)
        keys = images.image_keys(views_key, rows)
        inputs = objectives.Inputs(tiny.exposures(keys, part.image), part.label, {}, start.teacher, drop_key)
        losses.append(objective((weights, weights), inputs)[0])
    np.testing.assert_allclose(info.loss, np.full(DEVICES, np.mean(losses)), rtol=1e-5)


def test_a_sharded_batch_gives_the_gradients_of_one_device():
    method = tiny.byov_method(SGD, log_var=-4.0, beta=0.5)
    start, expected, expected_info = one_device(method)
    got, info = sharded(method, start)
    assert_same(got, expected, start)
    np.testing.assert_allclose(info.loss, expected_info.loss, rtol=1e-5)
    np.testing.assert_allclose(info.kl, expected_info.kl, rtol=1e-6)


def test_accumulation_over_a_sharded_batch():
    fields = {"net": tiny.student(tiny.Encoder(), norm="layer"), "log_var": -4.0}
    start, expected, _ = one_device(tiny.byov_method(SGD, **fields))
    got, _ = sharded(tiny.byov_method(SGD, accumulate=2, **fields), start)
    error, change = (
        optax.tree.norm(jax.tree.map(lambda x, y: x - y, expected.posterior, other.posterior))
        for other in (got, start)
    )
    assert error < NOISE * change


def sharded(method, start):
    """Run one step with the batch sharded over all devices and the state replicated."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    batch = jax.device_put(BATCH, NamedSharding(mesh, PartitionSpec("data")))
    return jax.jit(method.step)(jax.device_put(start, replicated), batch, jax.device_put(KEY, replicated))
