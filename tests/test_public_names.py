"""Every public name, called twice outside jit: the second call compiles nothing, and memory stays flat."""

from pathlib import Path

import jax
import public_names
import pytest
import tiny
import trainings

import byov_jax as byov
from byov_jax import posterior
from tools import compilations

ONE_PROGRAM = ("posterior.init", "posterior.kl", "posterior.sample", "posterior.snr")
MIB = 2**20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trainings.write_untrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(run):
    train = trainings.DATA.train
    return byov.load(run).with_probe(train.image, train.label)


def test_every_public_name_is_called_or_has_a_reason():
    called = {"load", *public_names.EXAMPLES, *public_names.SLOW_EXAMPLES, *public_names.OF_A_MODEL}
    reasons = set(public_names.WITHOUT_COMPUTATION)
    assert called.isdisjoint(reasons)
    assert called | reasons == set(public_names.exported())


@pytest.mark.parametrize("name", public_names.EXAMPLES)
def test_a_second_call_compiles_nothing(name):
    assert_compiled_once(public_names.EXAMPLES[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", public_names.SLOW_EXAMPLES)
def test_a_second_call_of_what_compiles_for_seconds_compiles_nothing(name):
    assert_compiled_once(public_names.SLOW_EXAMPLES[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", public_names.OF_A_MODEL)
def test_a_second_call_of_a_model_compiles_nothing(model, name):
    assert_compiled_once(public_names.OF_A_MODEL[name](model))


@pytest.mark.slow
def test_loading_again_compiles_nothing(run):
    assert_compiled_once(lambda: byov.load(run).posterior)


@pytest.mark.parametrize("name", ONE_PROGRAM)
def test_a_function_of_a_whole_network_is_one_program(name):
    assert compilations.of_two_calls(public_names.EXAMPLES[name]()) == (1, 0)


def test_a_bayesian_network_compiles_three_programs_more_than_the_network():
    """One to draw all weights, and two in which Flax derives the key of the draw."""
    bayesian = compilations.of_two_calls(public_names.EXAMPLES["Bayesian.apply"]())
    network = compilations.of_two_calls(public_names.EXAMPLES["networks.Student.apply"]())
    assert bayesian[0] - network[0] <= 3
    assert bayesian[1] == 0


def test_a_compilation_is_counted():
    assert compilations.of_two_calls(lambda: jax.jit(lambda x: x + 1)(1.0)) == (1, 1)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_resident_memory_is_flat_over_draws_outside_jit():
    net = byov.Bayesian(tiny.student())
    variables = jax.jit(net.init)(public_names.KEY, public_names.X)
    q = byov.Posterior(**variables["params"])
    keys = list(jax.random.split(public_names.KEY, 300))

    def draw(key):
        drawn = posterior.sample(key, q)
        outputs = net.apply(variables, public_names.X, rngs={"weights": key})
        jax.block_until_ready((drawn, outputs))

    for key in keys[:50]:
        draw(key)
    before = resident_bytes()
    for key in keys[50:]:
        draw(key)
    assert resident_bytes() - before < 4 * MIB


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def assert_compiled_once(call):
    jax.block_until_ready(call())
    assert compilations.of_call(call) == 0
