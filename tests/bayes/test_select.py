"""Selection of Bayesian parameters by `where`."""

import jax
import jax.numpy as jnp
import pytest

from byov_jax.bayes.select import select
from byov_jax.role import Role

ONE, MATRIX, KERNEL = jnp.ones(1), jnp.ones((1, 1)), jnp.ones((1, 1, 1, 1))
PARAMS = {
    "patch_embedding": {"kernel": KERNEL, "bias": ONE},
    "Conv_0": {"kernel": KERNEL},
    "blocks_0": {"norm_mlp": {"scale": ONE}, "mlp": {"up": {"kernel": MATRIX, "bias": ONE}}},
    "BatchNorm_0": {"scale": ONE, "bias": ONE},
    "class_token": jnp.ones((1, 1, 1)),
    "position_embedding": jnp.ones((1, 2, 1)),
}
LINEAR = {"blocks_0/mlp/up/kernel", "blocks_0/mlp/up/bias"}
TOKENS = {"class_token", "position_embedding"}
NORMS = {"blocks_0/norm_mlp/scale", "BatchNorm_0/scale", "BatchNorm_0/bias"}
CONVOLUTIONS = {"patch_embedding/kernel", "patch_embedding/bias", "Conv_0/kernel"}


def selected(where, params=PARAMS):
    flags = jax.tree_util.tree_leaves_with_path(select(params, where))
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, flag in flags if flag}


def test_presets():
    assert selected("all") == LINEAR | TOKENS | NORMS | CONVOLUTIONS
    assert selected("no_conv") == LINEAR | TOKENS | NORMS
    assert selected("linear_only") == LINEAR


def test_regular_expressions_search_the_path():
    assert selected("mlp/.*kernel$") == {"blocks_0/mlp/up/kernel"}


def test_callables_receive_path_and_leaf():
    params = {"a": jnp.ones((2, 2)), "b": jnp.ones(2)}
    assert selected(lambda path, leaf: path == "a" and leaf.ndim == 2, params) == {"a"}


def test_only_floating_point_arrays_can_be_selected():
    params = {"w": ONE, "steps": jnp.arange(3), "activation": jax.nn.relu, "key": jax.random.key(0)}
    assert selected("all", params) == {"w"}


def test_matching_nothing_is_an_error_that_lists_paths():
    with pytest.raises(
        ValueError, match=r"where='decoder' matches none of the 10 parameters: BatchNorm_0/bias, .*\.\.\."
    ):
        select(PARAMS, "decoder")
    with pytest.raises(ValueError, match="none of the 1 parameters: n"):
        select({"n": jnp.arange(3)}, "all")


def test_an_invalid_regular_expression_is_an_error():
    with pytest.raises(ValueError, match=r"where='\(' is neither one of .* nor a regular expression"):
        select(PARAMS, "(")


def test_known_roles_take_precedence_over_what_the_shapes_say():
    params = {"mixer": {"kernel": jnp.ones((3, 4, 5))}, "dense": {"kernel": MATRIX}}
    assert selected("no_conv", params) == {"mixer/kernel", "dense/kernel"}
    known = {"mixer/kernel": Role("convolution")}
    flags = select(params, "no_conv", known)
    assert flags == {"mixer": {"kernel": False}, "dense": {"kernel": True}}


def test_a_tree_of_bools_selects():
    params = {"a": ONE, "b": {"c": ONE, "n": jnp.arange(2)}}
    assert selected({"a": False, "b": {"c": True, "n": True}}, params) == {"b/c"}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"a": True}, "not with the structure of the parameters"),
        ({"a": 1.0, "b": 0.0}, "not of bools"),
        ({"a": False, "b": False}, "selects nothing"),
    ],
)
def test_wrong_trees_are_refused(where, message):
    with pytest.raises(ValueError, match=message):
        select({"a": ONE, "b": ONE}, where)
