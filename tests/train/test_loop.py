"""The plain loop: right counts, right order, same numbers again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import byov_jax as byov
from byov_jax.data.order import batch_indices
from byov_jax.train import loop

DATA = tiny.batch(20)


def test_it_is_the_step_over_the_seeded_order():
    method = tiny.byov_method()
    reports = [(p.step, float(p.info.loss)) for p in loop.run(method, DATA, seed=3, steps=4, batch_size=8)]

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
    whole = [jax.device_get(p.state) for p in loop.run(method, data, **settings)]
    *_, last = loop.run(method, data, **settings, state=jax.tree.map(jnp.asarray, whole[1]))
    assert last.step == last.state.step == 5
    jax.tree.map(np.testing.assert_array_equal, whole[-1], jax.device_get(last.state))


def test_a_batch_is_divided_among_devices_and_the_result_stays_the_same():
    method = tiny.byov_method(byov.optimizer.lars(0.1), classes=3)
    settings = {"seed": 0, "steps": 2, "batch_size": 16}
    *_, one = loop.run(method, DATA, **settings)
    *_, eight = loop.run(method, DATA, **settings, devices=jax.devices())
    assert len(jax.tree.leaves(eight.state.posterior)[0].sharding.device_set) == 8
    one, eight = jax.device_get((one, eight))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, eight)
    with pytest.raises(ValueError, match="a batch of 12 images cannot be divided among 8 devices"):
        next(loop.run(method, DATA, seed=0, steps=1, batch_size=12, devices=jax.devices()))
