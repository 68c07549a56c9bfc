"""Noise of all leaves in one loop: bit for bit that of `jax.random.normal`, leaf by leaf."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from byov_jax.bayes import noise

SHAPES = {"a": (300, 77), "b": (), "c": (noise.ROW,), "d": (2 * noise.ROW + 1,), "e": (3,), "f": (0, 3)}


def leaves(dtype=jnp.float32):
    return {path: jnp.zeros(shape, dtype) for path, shape in SHAPES.items()}


def one_by_one(key, dtype=jnp.float32):
    """What each leaf's own key draws."""
    found = {}
    for path, shape in SHAPES.items():
        low, high = np.frombuffer(hashlib.blake2b(path.encode(), digest_size=8).digest(), "<u4")
        found[path] = jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, low), high), shape, dtype)
    return found


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        assert found[path].dtype == leaf.dtype
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


KEYS = {
    "typed": lambda: jax.random.key(3),
    "raw": lambda: jax.random.PRNGKey(3),
    "rbg": lambda: jax.random.key(3, impl="rbg"),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("constrain", [None, lambda leaf: leaf], ids=["one loop", "leaf by leaf"])
def test_the_noise_of_a_leaf_is_that_of_its_own_key(kind, constrain):
    key = KEYS[kind]()
    expected = one_by_one(key)
    assert_same(noise.normal(key, leaves(), constrain), expected)
    assert_same(jax.jit(lambda key: noise.normal(key, leaves(), constrain))(key), expected)


def test_many_iterations_and_many_keys(monkeypatch):
    monkeypatch.setattr(noise, "ROWS", 3)
    keys = jax.random.split(jax.random.key(0), 2)
    found = jax.vmap(lambda key: noise.normal(key, leaves()))(keys)
    for index, key in enumerate(keys):
        assert_same({path: draws[index] for path, draws in found.items()}, one_by_one(key))


def test_other_precisions():
    assert_same(noise.normal(jax.random.key(1), leaves(jnp.bfloat16)), one_by_one(jax.random.key(1)))
    with jax.enable_x64(True):
        expected = one_by_one(jax.random.key(1), jnp.float64)
        assert_same(noise.normal(jax.random.key(1), leaves(jnp.float64)), expected)


def test_the_original_threefry():
    """Its numbers depend on the length of what is drawn, so that no leaf can be drawn in parts."""
    with jax.threefry_partitionable(False):
        assert_same(noise.normal(jax.random.key(2), leaves()), one_by_one(jax.random.key(2)))


def test_small_leaves_are_not_padded_to_a_row():
    """A thousand draws of a toy network make a thousand times its weights, not rows of a thousand numbers."""
    small = {path: leaf for path, leaf in leaves().items() if leaf.size < 5}

    def drawn(key):
        return noise.normal(key, small)

    expected = one_by_one(jax.random.key(5))
    assert_same(drawn(jax.random.key(5)), {path: expected[path] for path in small})
    made = jax.make_jaxpr(drawn)(jax.random.key(5)).jaxpr.eqns
    shapes = [var.aval.shape for step in made for var in step.outvars]
    assert max(np.prod(shape) for shape in shapes) < 100


def test_no_leaves():
    assert noise.normal(jax.random.key(0), {}) == {}
