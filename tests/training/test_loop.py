"""The training loop: number and order of steps, and the same numbers when repeated."""

import contextlib
import gc

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tiny

import byov_jax as byov
from byov_jax.data.loading.order import batch_indices
from byov_jax.training import loop

DATA = tiny.batch(20)


def test_it_is_the_step_over_the_seeded_order():
    method = tiny.byov_method(optax.sgd(0.1))  # Adam would make rounding errors as large as its learning rate
    reports = [(p.step, float(p.info.loss)) for p in tiny.train(method, DATA, seed=3, steps=4, batch_size=8)]

    init_key, step_key = jax.random.split(jax.random.key(3))
    state = method.init(init_key, jax.tree.map(lambda x: x[:8], DATA))
    step = jax.jit(method.step)
    for index, (number, loss) in enumerate(reports):
        rows = batch_indices(3, index, 20, 8)
        state, info = step(state, jax.tree.map(lambda x, rows=rows: x[rows], DATA), step_key)
        assert number == index + 1
        np.testing.assert_allclose(loss, info.loss, rtol=1e-6)


def test_it_goes_on_from_any_state_to_the_same_bits_and_takes_numpy():
    method = tiny.byov_method(classes=3)
    data = byov.Batch(np.asarray(DATA.image), np.asarray(DATA.label))
    settings = {"seed": 1, "steps": 5, "batch_size": 8}
    whole = [jax.device_get(p.placed) for p in tiny.train(method, data, **settings)]
    *_, last = tiny.train(method, data, **settings, state=jax.tree.map(jnp.asarray, whole[1]), first=2)
    assert last.step == last.placed.step == 5
    chex.assert_trees_all_equal(whole[-1], jax.device_get(last.placed))


def test_keys_are_of_the_kind_that_is_asked_for():
    assert loop.keys(0, "rbg").steps.dtype == jax.random.key(0, impl="rbg").dtype
    both = loop.keys(0)
    assert not jnp.array_equal(jax.random.key_data(both.init), jax.random.key_data(both.steps))


def test_the_first_step_is_announced_as_the_one_that_compiles():
    said = []

    @contextlib.contextmanager
    def compiling(what):
        said.append(f"compiling {what}")
        yield
        assert gc.isenabled()
        said.append("compiled")

    steps = tiny.train(tiny.byol_method(), DATA, seed=0, steps=2, batch_size=8, compiling=compiling)
    said += [progress.step for progress in steps]
    assert said == ["compiling the training step", "compiled", 1, 2]
