"""Leaves of one shape, stacked, are updated as they are one by one."""

import chex
import jax
import jax.numpy as jnp
import optax

from byov_jax.bayes import stacks

TREE = {
    "a": {"bias": jnp.arange(3.0), "kernel": jnp.ones((2, 3))},
    "b": {"bias": -jnp.arange(3.0), "kernel": None},
    "c": {"bias": jnp.arange(3, dtype=jnp.bfloat16), "kernel": jnp.zeros((2, 3))},
    "scale": jnp.float32(2.0),
}


def test_there_is_one_array_per_shape_and_dtype():
    stacked = stacks.stack(TREE)
    assert {kind: leaf.shape for kind, leaf in stacked.items()} == {
        "float32[3]": (2, 3),
        "float32[2, 3]": (2, 2, 3),
        "bfloat16[3]": (1, 3),
        "float32[]": (1,),
    }
    chex.assert_trees_all_equal(stacks.unstack(stacked, TREE), TREE)


def test_an_empty_tree_stays_empty():
    empty = {"a": None, "b": {}}
    assert stacks.stack(empty) == {}
    assert stacks.unstack({}, empty) == empty


def test_adam_on_stacks_is_adam():
    tree = {name: part for name, part in TREE.items() if name != "c"}
    one_by_one, stacked = optax.adam(0.1), stacks.elementwise(optax.adam(0.1))
    states = one_by_one.init(tree), stacked.init(tree)
    for seed in range(3):
        keys = iter(jax.random.split(jax.random.key(seed), 4))
        gradient = jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape), tree)  # noqa: B023
        expected, first = one_by_one.update(gradient, states[0], tree)
        found, second = stacked.update(gradient, states[1], tree)
        chex.assert_trees_all_close(found, expected, rtol=1e-6)
        states = first, second


def test_leaves_of_one_shape_are_one_operation():
    """The compiled update of Adam hardly grows with the number of leaves."""

    def instructions(count):
        tree = {str(i): jnp.zeros((4, 5)) for i in range(count)}
        optimizer = stacks.elementwise(optax.adam(0.1))
        program = jax.jit(lambda g, s: optimizer.update(g, s)[1]).lower(tree, optimizer.init(tree)).compile()
        return sum(" = " in line for line in program.as_text().splitlines())

    few, many = instructions(4), instructions(40)
    assert many - few < 36 * 5
