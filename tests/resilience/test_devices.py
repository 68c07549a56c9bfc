"""A run that resumes on another number of devices.

To the last bit: a state that is read on 1, 2 or 4 devices, divided or copied, since nothing is computed; a
training that goes on with the same number of devices, since the program is the same.
To rounding: a training that goes on with another number of devices, sharded, or by pmap with one draw, since
sums over images and devices are made in another order. It ends as near to the other as a training does whose
first weights are rounded differently.
Neither: by pmap with a draw for every device, since there are as many draws as devices.
"""

import jax
import numpy as np
import optax
import pytest
import tiny
from trainings import assert_same_state

import byov_jax as byov
from byov_jax import distributed
from byov_jax.checkpoints import checkpointer
from byov_jax.training import feed, loop

MODES = ("sharded", "pmap")
DATA = tiny.batch(64)
BATCH_SIZE, STEPS = 16, 10
KEYS = loop.keys(3)
EPS = np.finfo(np.float32).eps


@pytest.fixture(scope="module")
def runner():
    """A function that returns the runner of a mode on a number of devices, built once."""
    found = {}

    def of(mode, devices):
        if (mode, devices) not in found:
            net = tiny.student(axis_name="data" if mode == "pmap" else None)
            found[mode, devices] = distributed.build(
                lambda layout: tiny.byov_method(
                    optax.sgd(0.1, momentum=0.9),
                    net=net,
                    layout=layout,
                    prior=byov.priors.teacher_moments(),
                    log_var=-4.0,
                    variance=byov.variance.gradient(optax.sgd(0.1, momentum=0.9)),  # Adam amplifies rounding
                    classes=3,
                ),
                jax.tree.map(lambda x: x[:BATCH_SIZE], DATA),
                mode=mode,
                devices=jax.devices()[:devices],
                one_draw=True,
                min_sharded_size=1,
            )
        return found[mode, devices]

    return of


def train(runner, state, until):
    """From a state to the state after a number of steps."""
    first = int(state.step)
    order = {"seed": 0, "batch_size": BATCH_SIZE, "first": first, "steps": until}
    placed = runner.put_state(state)
    for progress in loop.run_steps(
        runner, placed, feed.from_memory(runner, DATA, **order), KEYS.steps, first=first
    ):
        placed = progress.placed
    return runner.get_state(placed)


def go_on(runner, folder, until):
    """From the newest checkpoint, or from the first state, to a checkpoint after a number of steps."""
    state = checkpointer.restore_newest(folder, runner.abstract_state())
    if state is None:
        state = runner.get_state(runner.init(KEYS.init))
    state = train(runner, state, until)
    checkpointer.save(folder, until, state)
    return jax.device_get(state)


@pytest.mark.parametrize("mode", MODES)
def test_with_the_same_number_of_devices_every_bit_is_the_same(mode, runner, tmp_path):
    for devices in (1, 2, 4):
        on = runner(mode, devices)
        whole = go_on(on, tmp_path / f"{devices} whole", STEPS)
        for until in (3, 4, STEPS):
            parts = go_on(on, tmp_path / f"{devices} parts", until)
        assert_same_state(parts, whole)


@pytest.mark.parametrize("mode", MODES)
def test_a_state_is_read_on_any_number_of_devices(mode, runner, tmp_path):
    written = go_on(runner(mode, 2), tmp_path, 2)
    for other in MODES:
        for devices in (1, 2, 4):
            on = runner(other, devices)
            found = checkpointer.restore_newest(tmp_path, on.abstract_state())
            assert_same_state(jax.device_get(on.get_state(on.put_state(found))), written)
            kernel = found.posterior.mean["encoder"]["Dense_0"]["kernel"]
            shard = kernel.addressable_shards[0].data.size
            assert shard == kernel.size // (devices if other == "sharded" else 1)


@pytest.mark.parametrize("mode", MODES)
def test_with_other_numbers_of_devices_the_training_is_the_same_to_rounding(mode, runner, tmp_path):
    start = jax.device_get(runner(mode, 1).get_state(runner(mode, 1).init(KEYS.init)))
    whole = jax.device_get(train(runner(mode, 1), start, STEPS))
    checkpointer.save(tmp_path, 0, start)
    for until, devices in ((2, 1), (4, 2), (6, 4), (8, 2), (STEPS, 1)):
        found = go_on(runner(mode, devices), tmp_path, until)
    rounded = jax.device_get(train(runner(mode, 1), one_rounding_away(start), STEPS))
    # The momenta of means and log-variances are those of one training: the former alone are small at the end.
    momenta = ("optimizer", "variance")
    for part in (("posterior",), ("stats",), ("teacher",), ("prior",), momenta, ("online",)):
        error, change = distance(found, whole, part), distance(start, whole, part)
        rounding = distance(rounded, whole, part)
        assert rounding < 1000 * EPS * change, part  # or nothing could be told from it
        assert error < 4 * rounding, part
    assert any(x.tobytes() != y.tobytes() for x, y in zip(*map(jax.tree.leaves, (found, whole)), strict=True))


def one_rounding_away(state):
    """The state with every mean moved by half a unit in the last place, up or down."""
    random = np.random.default_rng(0)

    def moved(leaf):
        return leaf * (1.0 + random.choice([-EPS, EPS], leaf.shape) / 2).astype(leaf.dtype)

    return state._replace(posterior=state.posterior._replace(mean=jax.tree.map(moved, state.posterior.mean)))


def distance(one, other, part):
    leaves = [jax.tree.leaves([getattr(state, name) for name in part]) for state in (one, other)]
    pairs = zip(*leaves, strict=True)
    return float(optax.tree.norm([x.astype(np.float32) - y.astype(np.float32) for x, y in pairs]))
