"""Leaves of one shape are stacked."""

import jax.numpy as jnp
import numpy as np

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
    np.testing.assert_array_equal(stacked["float32[3]"], [[0, 1, 2], [0, -1, -2]])


def test_an_empty_tree_has_none():
    assert stacks.stack({"a": None, "b": {}}) == {}
