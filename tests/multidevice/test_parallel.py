"""Runners on 1 and on 8 devices: sharded and pmap give the same gradients, statistics and teacher."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

import byov_jax as byov
from byov_jax import distributed, networks
from byov_jax.checkpoints import checkpointer
from byov_jax.distributed import sharded
from byov_jax.training import loop

pytestmark = pytest.mark.usefixtures("optimized")
SGD = optax.sgd(1.0)  # the update is the gradient
NOISE = 100 * np.finfo(np.float32).eps
BATCH = tiny.batch(32)
KEYS = loop.keys(3)


def make_method(axis_name=None, optimizer=SGD, **settings):
    fields = {"log_var": -4.0, "beta": 0.5, "prior": byov.priors.teacher_moments(), "classes": 3} | settings
    net = tiny.student(tiny.vit(width=16, init_std=0.25), axis_name=axis_name)
    return lambda layout: tiny.byov_method(optimizer, net=net, layout=layout, **fields)


def build(mode, devices=8, **settings):
    one_draw = settings.pop("one_draw", False)
    axis = "data" if mode == "pmap" else None
    return distributed.build(
        make_method(axis, **settings),
        BATCH,
        mode=mode,
        devices=jax.devices()[:devices],
        one_draw=one_draw,
        min_sharded_size=1,
    )


def one_step(runner, start=None):
    """Run one step from `start`, by default from the runner's own initial state."""
    placed = runner.init(KEYS.init)
    own = jax.device_get(runner.get_state(placed))
    if start is not None:
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-8), own, start)
        placed = runner.put_state(start)  # another program's initial state may differ in the last bit
    part = jax.tree.map(lambda x: np.asarray(x)[runner.local_rows()], BATCH)
    placed, info = runner.step(placed, runner.put_batch(part), KEYS.steps)
    return start or own, jax.device_get(runner.get_state(placed)), jax.device_get(info)


@pytest.fixture(scope="module")
def plain():
    return one_step(build("plain"))


@pytest.mark.parametrize(("mode", "settings"), [("sharded", {}), ("pmap", {"one_draw": True})])
def test_gradients_statistics_and_teacher_are_those_of_one_device(mode, settings, plain):
    start, expected, expected_info = plain
    _, got, info = one_step(build(mode, **settings), start)
    step = distance(start, expected, "posterior")
    for part, change in (
        ("posterior", step),
        ("stats", distance(start, expected, "stats")),
        ("teacher", 0.1 * step),
        ("prior", distance(start, expected, "prior")),
        ("online", distance(start, expected, "online")),
    ):
        assert change > 0.0
        error = distance(got, expected, part)
        assert error < NOISE * change, f"{part}: relative error {error / change}"
    for name in ("loss", "kl", "kl_scaled", "temperature", "embedding_std", "gradient_norm"):
        np.testing.assert_allclose(getattr(info, name), getattr(expected_info, name), rtol=1e-5)


def distance(one, other, part):
    return optax.tree.norm(
        jax.tree.map(
            lambda x, y: x - y, jax.tree.leaves(getattr(one, part)), jax.tree.leaves(getattr(other, part))
        )
    )


def test_pmap_draws_other_weights_on_every_device_by_default(plain):
    start, one_draw, _ = plain
    _, own_draws, _ = one_step(build("pmap"), start)
    assert distance(one_draw, own_draws, "posterior") > 0.01 * distance(start, one_draw, "posterior")


def test_the_state_is_sharded():
    """Bytes per device fall with the number of devices."""
    size = {}
    for devices in (1, 2, 8):
        runner = build("sharded", devices)
        leaves = jax.tree.leaves(runner.init(KEYS.init))
        size[devices] = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
        for leaf, abstract in zip(leaves, jax.tree.leaves(runner.abstract_state()), strict=True):
            assert leaf.sharding.is_equivalent_to(abstract.sharding, leaf.ndim)
    assert size[2] < 0.55 * size[1]
    assert size[8] < 0.2 * size[1]


def test_every_device_draws_only_its_shard_of_the_noise():
    """In the compiled program each device generates 1/8 of the random bits of a [64, 512] kernel."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    layout = sharded.layout(mesh, min_size=1)
    q = byov.posterior.init({"kernel": jnp.zeros((64, 512))})

    def most_bits(draw, sharding):
        text = jax.jit(draw).lower(jax.random.key(0), jax.device_put(q, sharding)).compile().as_text()
        shapes = re.findall(r"= u32\[([\d,]*)\]\S* xor\(", text)
        return max(np.prod([int(side) for side in shape.split(",") if side]) for shape in shapes)

    whole = most_bits(
        lambda key, q: byov.posterior.sample(key, q, constrain=lambda leaf: leaf),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()),
    )
    part = most_bits(
        lambda key, q: layout.gather(byov.posterior.sample(key, q, constrain=layout.shard)),
        sharded.leaf_sharding(mesh, (64, 512), min_size=1),
    )
    assert whole == 64 * 512
    assert part == 64 * 512 / 8


def test_a_draw_does_not_depend_on_the_sharding():
    params = {"a": jnp.zeros((64, 16)), "b": jnp.zeros((8,)), "c": jnp.zeros((64, 16))}
    q = byov.posterior.init(params, log_var=0.0)
    expected = jax.jit(byov.posterior.sample)(KEYS.init, q)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    layout = sharded.layout(mesh, min_size=1)
    draw = jax.jit(
        lambda key, q: layout.gather(byov.posterior.sample(key, layout.shard(q), constrain=layout.shard))
    )
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), jax.device_get(draw(KEYS.init, q)), expected
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accumulation_with_a_sharded_state(accumulate):
    """Layer norm instead of batch norm: statistics of half a batch differ."""

    def method(layout):
        net = tiny.student(tiny.vit(width=16, init_std=0.25), norm="layer")
        return tiny.byov_method(SGD, net=net, layout=layout, log_var=-4.0, accumulate=accumulate)

    start, expected, _ = one_step(distributed.build(method, BATCH, mode="plain"))
    _, got, _ = one_step(distributed.build(method, BATCH, mode="sharded", min_sharded_size=1), start)
    assert distance(got, expected, "posterior") < NOISE * distance(start, expected, "posterior")


def test_a_checkpoint_is_restored_onto_another_number_of_devices(tmp_path):
    optimizer = byov.optimizers.adamw(1e-3)
    modes = [("sharded", 8), ("plain", 1), ("pmap", 4), ("sharded", 2)]
    runner = build("sharded", 4, optimizer=optimizer)
    state = runner.get_state(runner.init(KEYS.init))
    first = jax.device_get(state)
    for step, (mode, devices) in enumerate(modes):
        checkpointer.save(tmp_path, step, state)
        runner = build(mode, devices, optimizer=optimizer)
        restored = checkpointer.restore(tmp_path, step, runner.abstract_state())
        state = runner.get_state(runner.put_state(restored))
        chex.assert_trees_all_equal(jax.device_get(state), first)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="a batch of 32 images cannot be divided among 5 devices"):
        build("sharded", 5)
    with pytest.raises(ValueError, match="mode='both': expected one of auto, plain, sharded, pmap"):
        build("both")


def test_half_precision_keeps_parameters_and_statistics_in_float32():
    net = networks.Student(
        tiny.vit(width=16, init_std=0.25, dtype=jnp.bfloat16),
        *(networks.MLP((8, 8), dtype=jnp.bfloat16) for _ in range(2)),
    )
    runner = distributed.build(
        lambda layout: tiny.byov_method(SGD, net=net, layout=layout),
        BATCH,
        mode="sharded",
        min_sharded_size=1,
    )
    _, state, info = one_step(runner)
    assert {leaf.dtype for leaf in jax.tree.leaves((state.posterior, state.stats))} == {np.dtype(np.float32)}
    assert info.kl.dtype == np.float32
    assert np.isfinite(info.loss)
