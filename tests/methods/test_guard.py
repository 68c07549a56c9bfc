"""The guard skips steps that are not finite or spike; the run is bit for bit the run without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from trainings import assert_same_state

import byov_jax as byov
from byov_jax import distributed
from byov_jax.methods import guard
from byov_jax.methods.guard import REASONS, Guard
from byov_jax.training import loop

NAN, INF = float("nan"), float("inf")
WHITE = 255
KEYS = loop.keys(0)


def numbers(state):
    return Guard(*(value.item() for value in state))


@pytest.mark.parametrize(
    ("loss", "kl", "norm", "reason"),
    [
        (NAN, 1.0, 1.0, "the loss"),
        (INF, 1.0, 1.0, "the loss"),
        (1.0, NAN, 1.0, "the KL"),
        (1.0, INF, INF, "the KL"),
        (1.0, 1.0, NAN, "the gradient"),
        (NAN, NAN, NAN, "the loss"),
        (9.1, 1.0, 1.0, "a spike of the loss"),
    ],
)
def test_a_bad_step_is_rejected_with_its_reason(loss, kl, norm, reason):
    before = Guard(jnp.int32(4), jnp.int32(1), jnp.int32(2), jnp.float32(3.0))
    accepted, after = guard.check(before, *map(jnp.float32, (loss, kl, norm)), 3.0)
    assert not accepted
    assert numbers(after) == Guard(5, 2, REASONS.index(reason), 3.0)


def test_an_accepted_step_resets_the_count_in_a_row_and_updates_the_average():
    before = Guard(jnp.int32(4), jnp.int32(3), jnp.int32(2), jnp.float32(3.0))
    accepted, after = guard.check(before, jnp.float32(8.9), jnp.float32(0.0), jnp.float32(1e30), 3.0)
    assert accepted
    assert numbers(after) == Guard(4, 0, 2, pytest.approx(0.99 * 3.0 + 0.01 * 8.9))


def test_neither_the_first_loss_nor_any_loss_without_a_limit_is_a_spike():
    for spike, average in ((3.0, 0.0), (0.0, 1e-9)):
        before = guard.init()._replace(average=jnp.float32(average))
        accepted, after = guard.check(before, jnp.float32(1e9), jnp.float32(0.0), jnp.float32(1.0), spike)
        assert accepted
    assert numbers(after).average == pytest.approx(1e7)


def nan_views(keys, image):
    """Views that are NaN for white images."""
    first, second = tiny.exposures(keys, image)
    bad = jnp.all(image == WHITE, axis=(1, 2, 3), keepdims=True)
    return jnp.where(bad, jnp.nan, first), second


def runner_of(mode, spike=0.0):
    net = tiny.student(axis_name="data" if mode == "pmap" else None)
    return distributed.build(
        lambda layout: tiny.byov_method(
            byov.optimizers.adamw(1e-3),
            net=net,
            layout=layout,
            views=nan_views,
            spike=spike,
            prior=byov.priors.teacher_moments(),
            classes=3,
        ),
        tiny.batch(),
        mode=mode,
        devices=jax.devices()[: 1 if mode == "plain" else 2],
        min_sharded_size=1,
    )


@pytest.fixture(scope="module")
def plain():
    return runner_of("plain")


def batches(count, white=()):
    """NumPy batches; in those numbered in `white` the last image, on the last device, is white."""
    for number in range(count):
        batch = jax.tree.map(np.array, tiny.batch(seed=number))
        if number in white:
            batch.image[-1] = WHITE
        yield batch


def run(runner, white=(), *, leave_out=(), count=6):
    """Return the state after `count` steps without those in `leave_out`, and the info of each step."""
    placed, infos = runner.init(KEYS.init), []
    for number, batch in enumerate(batches(count, white)):
        if number in leave_out:
            state = runner.get_state(placed)
            placed = runner.put_state(state._replace(step=state.step + 1))
            continue
        placed, info = runner.step(placed, runner.put_batch(batch), KEYS.steps)
        infos.append(jax.device_get(info))
    return jax.device_get(runner.get_state(placed)), infos


@pytest.mark.parametrize("mode", ["plain", "sharded", "pmap"])
def test_a_run_with_skipped_steps_equals_the_run_without_them(mode, plain):
    """On every device, although only the last has a NaN."""
    runner = plain if mode == "plain" else runner_of(mode)
    state, infos = run(runner, white=(2, 3))
    assert [int(info.skipped) for info in infos] == [0, 0, 1, 2, 2, 2]
    assert [int(info.skipped_in_a_row) for info in infos] == [0, 0, 1, 2, 0, 0]
    assert REASONS[int(infos[3].skipped_for)] == "the loss"
    assert np.isnan(infos[2].loss)
    expected, _ = run(runner, leave_out=(2, 3))
    assert numbers(state.guard)[:3] == (2, 0, REASONS.index("the loss"))
    assert_same_state(state._replace(guard=None), expected._replace(guard=None))
    assert state.guard.average == expected.guard.average
    assert int(state.step) == 6
    clean, _ = run(runner)
    assert any(x.tobytes() != y.tobytes() for x, y in zip(*map(jax.tree.leaves, (state, clean)), strict=True))


def test_the_first_steps_may_be_nan(plain):
    start = jax.device_get(plain.init(KEYS.init))
    state, _ = run(plain, white=range(3), count=3)
    assert numbers(state.guard) == Guard(3, 3, 1, 0.0)
    assert_same_state(state._replace(guard=None, step=None), start._replace(guard=None, step=None))


def one_step(runner, state):
    """Return the reason for which a step from a bad state is skipped, and its info."""
    (batch,) = batches(1)
    before = jax.device_get(state)
    after, info = jax.device_get(runner.step(runner.put_state(state), runner.put_batch(batch), KEYS.steps))
    assert_same_state(after._replace(guard=None, step=None), before._replace(guard=None, step=None))
    assert np.isfinite(info.loss)
    return REASONS[int(after.guard.reason)], info


def test_a_gradient_that_is_not_finite_is_named(plain):
    """The KL of this variance is finite, the square of its gradient overflows."""
    state = plain.init(KEYS.init)
    log_var = state.posterior.log_var
    log_var["predictor"]["dense_0"]["kernel"] = jnp.full((8, 8), 60.0)
    reason, info = one_step(plain, state)
    assert np.isfinite(info.kl)
    assert np.isinf(info.gradient_norm)
    assert reason == "the gradient"


def test_a_kl_that_is_not_finite_is_named(plain):
    """The prior mean of the predictor affects only the KL."""
    state = plain.init(KEYS.init)
    far = jax.tree.map(lambda x: x + 1e30, state.prior.mean)
    reason, info = one_step(plain, state._replace(prior=state.prior._replace(mean=far)))
    assert np.isinf(info.kl)
    assert reason == "the KL"


def test_spikes_are_skipped_with_a_limit():
    """With a moving average far below every loss, all losses are spikes."""
    runner = runner_of("plain", spike=1.0)
    start = jax.device_get(runner.init(KEYS.init))
    low = start._replace(guard=start.guard._replace(average=np.float32(1e-3)))
    placed, infos = runner.put_state(low), []
    for batch in batches(2):
        placed, info = runner.step(placed, runner.put_batch(batch), KEYS.steps)
        infos.append(info)
    every = jax.device_get(runner.get_state(placed))
    assert numbers(every.guard)[:3] == (2, 2, REASONS.index("a spike of the loss"))
    assert_same_state(every._replace(guard=None, step=None), start._replace(guard=None, step=None))
    none, _ = run(runner_of("plain", spike=100.0), count=3)
    assert numbers(none.guard)[:3] == (0, 0, 0)
