"""Selection of Bayesian parameters by `where`."""

import jax
import jax.numpy as jnp
import pytest

from byov_jax.bayes.select import is_kernel, select

ONE = jnp.ones(1)
PARAMS = {
    "patch_embedding": {"kernel": ONE, "bias": ONE},
    "Conv_0": {"kernel": ONE},
    "blocks_0": {"norm_mlp": {"scale": ONE}, "mlp": {"up": {"kernel": ONE, "bias": ONE}}},
    "BatchNorm_0": {"scale": ONE, "bias": ONE},
    "class_token": ONE,
    "position_embedding": ONE,
}
LINEAR = {"blocks_0/mlp/up/kernel", "blocks_0/mlp/up/bias", "class_token", "position_embedding"}
NORMS = {"blocks_0/norm_mlp/scale", "BatchNorm_0/scale", "BatchNorm_0/bias"}
CONVOLUTIONS = {"patch_embedding/kernel", "patch_embedding/bias", "Conv_0/kernel"}


def selected(where, params=PARAMS):
    flags = jax.tree_util.tree_leaves_with_path(select(params, where))
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, flag in flags if flag}


def test_presets():
    assert selected("all") == LINEAR | NORMS | CONVOLUTIONS
    assert selected("no_conv") == LINEAR | NORMS
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


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("encoder/blocks_0/mlp/up/kernel", True),
        ("layers/0/weight", True),
        ("encoder/blocks_0/mlp/up/bias", False),
        ("norm1/weight", False),
        ("encoder/class_token", False),
    ],
)
def test_kernels_are_recognised_by_name(path, expected):
    assert is_kernel(path) is expected
