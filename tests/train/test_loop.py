"""The plain loop: right counts, right order, same numbers again."""

import jax
import numpy as np
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


def test_it_reports_at_intervals_and_at_the_end_and_takes_numpy():
    data = byov.Batch(np.asarray(DATA.image))
    progress = list(loop.run(tiny.byol_method(), data, seed=0, steps=5, batch_size=8, report_every=2))
    assert [p.step for p in progress] == [2, 4, 5]
    assert progress[-1].state.step == 5
