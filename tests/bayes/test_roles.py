"""What a parameter is, read off a tree: never from how a module is called where shapes and owners decide."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from byov_jax.bayes import roles
from byov_jax.role import Role


class ConvNeXtBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), feature_group_count=4, name="dwconv")(x)
        return nn.Dense(4)(nn.GroupNorm(2, name="gn1")(x))


class Net(nn.Module):
    """Modules called otherwise than by their kind."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), name="stem_conv")(x)
        x = nn.Conv(4, (2, 2), name="downsample_0")(x)
        x = ConvNeXtBlock()(x).mean((1, 2))
        x = x + nn.Embed(3, 4)(jnp.zeros(len(x), jnp.int32))
        x = nn.MultiHeadDotProductAttention(2)(x[:, None])[:, 0]
        return x + self.param("class_token", nn.initializers.ones, (1, 4))


@pytest.fixture(scope="module")
def owners():
    params = Net().init(jax.random.key(0), jnp.zeros((1, 8, 8, 4)))["params"]
    return {path: role.owner for path, role in roles.infer(params).items()}


def test_shapes_and_owners_decide_not_names(owners):
    for path in ("stem_conv", "downsample_0", "ConvNeXtBlock_0/dwconv"):
        assert owners[f"{path}/kernel"] == owners[f"{path}/bias"] == "convolution"
    assert owners["ConvNeXtBlock_0/Dense_0/kernel"] == owners["ConvNeXtBlock_0/Dense_0/bias"] == "linear"
    assert owners["ConvNeXtBlock_0/gn1/scale"] == owners["ConvNeXtBlock_0/gn1/bias"] == "norm"
    assert owners["Embed_0/embedding"] == "embedding"
    assert owners["class_token"] == "other"
    for name in ("query", "key", "value", "out"):
        assert owners[f"MultiHeadDotProductAttention_0/{name}/kernel"] == "linear"


def test_equinox_and_pytorch_layouts():
    params = {
        "conv1": {"weight": jnp.ones((4, 3, 3, 3)), "bias": jnp.ones((4, 1, 1))},
        "conv1d": {"weight": jnp.ones((4, 3, 3))},
        "layers": [
            {"weight": jnp.ones((4, 3)), "bias": jnp.ones(4)},
            {"weight": jnp.ones(4), "bias": jnp.ones(4)},
        ],
        "rms": {"weight": jnp.ones(4)},
        "token_embed": {"weight": jnp.ones((10, 4))},
    }
    owners = {path: role.owner for path, role in roles.infer(params).items()}
    assert owners["conv1/weight"] == owners["conv1/bias"] == owners["conv1d/weight"] == "convolution"
    assert owners["layers/0/weight"] == owners["layers/0/bias"] == "linear"
    assert owners["layers/1/weight"] == owners["rms/weight"] == "norm"
    assert owners["token_embed/weight"] == "embedding"


def test_nnx_states():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.stem = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.bn = nnx.BatchNorm(4, rngs=rngs)
            self.head = nnx.Linear(4, 2, rngs=rngs)

    params = nnx.state(Model(nnx.Rngs(0)), nnx.Param)
    owners = {path: role.owner for path, role in roles.infer(params).items()}
    assert owners["stem/kernel"] == "convolution"
    assert owners["bn/scale"] == owners["bn/bias"] == "norm"
    assert owners["head/kernel"] == owners["head/bias"] == "linear"


def test_a_list_of_blocks_is_not_a_stack():
    """Nothing counts as stacked because of a name: `blocks` of Equinox is a list of layers."""
    found = roles.infer({"blocks": {"layers": [{"weight": jnp.ones((4, 3))}]}})
    assert found == {"blocks/layers/0/weight": Role("linear", stacked=False)}
    assert roles.layer_paths("blocks/layers/0/weight", found["blocks/layers/0/weight"], 4) == [
        "blocks/layers/0/weight"
    ]


@pytest.mark.parametrize(
    ("path", "owner", "expected"),
    [
        ("encoder/blocks_0/mlp/up/kernel", "linear", True),
        ("layers/0/weight", "linear", True),
        ("w", "linear", True),
        ("conv/kernel", "convolution", True),
        ("encoder/blocks_0/mlp/up/bias", "linear", False),
        ("norm1/weight", "norm", False),
        ("Embed_0/embedding", "embedding", False),
        ("encoder/class_token", "other", False),
    ],
)
def test_kernels_are_weights_of_linear_and_convolutional_layers(path, owner, expected):
    assert roles.is_kernel(path, Role(owner)) is expected


def test_stacked_layers_have_a_path_each():
    stacked = Role("linear", stacked=True)
    assert roles.layer_paths("encoder/blocks/mlp/up/kernel", stacked, 2) == [
        "encoder/blocks/0/mlp/up/kernel",
        "encoder/blocks/1/mlp/up/kernel",
    ]
    assert roles.layer_paths("trunk/w", stacked, 2) == ["trunk/w/0", "trunk/w/1"]
    chex.assert_equal(roles.layer_paths("trunk/w", Role("linear"), 2), ["trunk/w"])


def test_norms_over_several_axes_are_norms():
    """As Equinox's `LayerNorm((4, 4))`, or a norm that a scan stacks."""
    params = {
        "layer_norm": {"weight": jnp.ones((4, 4)), "bias": jnp.ones((4, 4))},
        "stacked": {"scale": jnp.ones((3, 4)), "bias": jnp.ones((3, 4))},
        "linear": {"weight": jnp.ones((4, 4)), "bias": jnp.ones(4)},
    }
    owners = {path: role.owner for path, role in roles.infer(params).items()}
    assert owners["layer_norm/weight"] == owners["stacked/scale"] == "norm"
    assert owners["linear/weight"] == "linear"
