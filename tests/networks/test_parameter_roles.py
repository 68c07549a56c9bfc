"""Roles of parameters: the kind of layer that owns each, and what a scan stacks."""

from typing import ClassVar

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from byov_jax import networks
from byov_jax.networks.parameter_roles import roles
from byov_jax.role import Role

IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)


def owners(module, x=IMAGES, **kwargs):
    """Return the owner of every parameter, after checking that all of them have one and none is stacked."""
    found = roles(module, x, **kwargs)
    params = jax.eval_shape(lambda x: module.init(jax.random.key(0), x, **kwargs), x)["params"]
    paths = [
        jax.tree_util.keystr(k, simple=True, separator="/") for k, _ in jax.tree.leaves_with_path(params)
    ]
    assert list(found) == paths
    assert not any(role.stacked for role in found.values())
    return {path: role.owner for path, role in found.items()}


def student(encoder):
    return networks.Student(encoder, networks.MLP((6, 4)), networks.MLP((6, 4), norm="layer"))


@pytest.mark.parametrize("remat", [False, True])
def test_vision_transformer(remat):
    found = owners(student(networks.ViT(patch=4, width=8, depth=2, heads=2, remat=remat)))
    assert found["encoder/patch_embedding/kernel"] == "convolution"
    assert found["encoder/patch_embedding/bias"] == "convolution"
    assert found["encoder/class_token"] == found["encoder/position_embedding"] == "other"
    assert found["encoder/blocks_1/norm_mlp/scale"] == found["encoder/norm/bias"] == "norm"
    for layer in ("attention/qkv", "attention/out", "mlp/up", "mlp/down"):
        assert (
            found[f"encoder/blocks_0/{layer}/kernel"] == found[f"encoder/blocks_0/{layer}/bias"] == "linear"
        )
    assert found["projector/dense_0/kernel"] == found["predictor/dense_0/bias"] == "linear"
    assert found["projector/norm_0/scale"] == found["predictor/norm_0/scale"] == "norm"


@pytest.mark.parametrize("remat", [False, True])
def test_scanned_vision_transformer(remat):
    found = roles(student(networks.ViT(patch=4, width=8, depth=3, heads=2, scan=True, remat=remat)), IMAGES)
    assert found["encoder/blocks/mlp/up/kernel"] == Role("linear", stacked=True)
    assert found["encoder/blocks/mlp/up/bias"] == Role("linear", stacked=True)
    assert found["encoder/blocks/norm_mlp/scale"] == Role("norm", stacked=True)
    assert {path for path, role in found.items() if role.stacked} == {p for p in found if "/blocks/" in p}


def test_a_frozen_patch_embedding_is_no_parameter():
    found = owners(networks.ViT(patch=4, width=8, depth=1, heads=2, frozen_patch=True))
    assert not [path for path in found if path.startswith("patch_embedding")]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_network(norm):
    found = owners(networks.ResNet((1, 1), bottleneck=True, width=32, stem="small", norm=norm))
    for path, owner in found.items():
        assert owner == ("norm" if path.split("/")[-2].startswith("norm") else "convolution"), path


class ConvNeXtBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.Conv(4, (3, 3), feature_group_count=4, name="dwconv")(x)
        y = nn.Dense(4)(nn.GroupNorm(2, name="gn1")(y))
        return x + self.param("gamma", nn.initializers.ones, (4,))[None, None, None] * y


class Mixed(nn.Module):
    """Names that say nothing about the layers."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (1, 1), name="stem_conv")(x)
        x = nn.Conv(4, (2, 2), (2, 2), name="downsample_0")(x)
        x = nn.ConvTranspose(4, (2, 2), name="dense")(ConvNeXtBlock()(x))
        tokens = nn.MultiHeadDotProductAttention(2)(x.reshape(len(x), -1, 4))
        tokens += nn.Embed(16, 4)(jnp.arange(16))[None]
        tokens = nn.RMSNorm(name="conv_1")(nn.WeightNorm(nn.DenseGeneral(4, name="head"))(tokens))
        return nn.PReLU()(tokens.mean(1))


def test_a_network_of_a_user():
    found = owners(Mixed())
    by_layer = {}
    for path, owner in found.items():
        by_layer.setdefault(path.rpartition("/")[0], set()).add(owner)
    attention = {
        f"MultiHeadDotProductAttention_0/{part}": {"linear"} for part in ("query", "key", "value", "out")
    }
    assert by_layer == attention | {
        "stem_conv": {"convolution"},
        "downsample_0": {"convolution"},
        "dense": {"convolution"},
        "ConvNeXtBlock_0": {"other"},
        "ConvNeXtBlock_0/dwconv": {"convolution"},
        "ConvNeXtBlock_0/gn1": {"norm"},
        "ConvNeXtBlock_0/Dense_0": {"linear"},
        "Embed_0": {"embedding"},
        "conv_1": {"norm"},
        "head": {"linear"},
        "WeightNorm_0/head/kernel": {"norm"},
        "PReLU_0": {"other"},
    }


def test_vmap_stacks_and_nests_in_a_scan():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            layers = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, axis_size=3)
            gain = self.param("gain", nn.initializers.ones, ())
            return gain * layers(4, name="layers")(x), None

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            scan = nn.scan(Body, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
            return nn.Dense(4, name="last")(scan(name="scan")(x, None)[0])

    found = roles(Net(), jnp.zeros((3, 2, 4)))
    assert found["scan/layers/kernel"] == found["scan/layers/bias"] == Role("linear", stacked=True)
    assert found["scan/gain"] == Role("other", stacked=True)
    assert found["last/kernel"] == Role("linear")


def test_names_of_a_scan_do_not_matter():
    """`blocks` without a scan is not stacked; `layers` with one is."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            scan = nn.scan(
                lambda layer, x, _: (layer(x), None),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=2,
            )
            return scan(nn.Dense(3, name="layers"), nn.Dense(3, name="blocks")(x), None)[0]

    found = roles(Net(), jnp.zeros((2, 3)))
    assert found["layers/kernel"].stacked
    assert not found["blocks/kernel"].stacked


def test_a_module_names_its_own_kind():
    class Own(nn.Module):
        role: ClassVar[str] = "norm"

        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(self.param("gain", nn.initializers.ones, (3,))[None] * x)

    class Field(nn.Module):
        role: str = "teacher"

        @nn.compact
        def __call__(self, x):
            return self.param("gain", nn.initializers.ones, (3,))[None] * x

    class Wrong(Own):
        role: ClassVar[str] = "conv"

    x = jnp.zeros((2, 3))
    assert owners(Own(), x)["gain"] == "norm"
    assert owners(Own(), x)["Dense_0/kernel"] == "linear"
    assert owners(Field(), x) == {"gain": "other"}
    with pytest.raises(ValueError, match=r"Wrong.role='conv': expected one of convolution, linear, norm"):
        roles(Wrong(), x)


def test_partitioned_parameters_keep_their_paths():
    init = nn.with_partitioning(nn.initializers.ones, ("in", "out"))
    found = roles(nn.Dense(3, kernel_init=init), jnp.zeros((2, 3)))
    assert set(found) == {"kernel", "bias"}


def test_arguments_reach_the_network():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            assert train is True
            return nn.Dense(3)(x)

    assert set(owners(Net(), jnp.zeros((2, 3)), train=True).values()) == {"linear"}


def test_no_parameters():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x

    assert roles(Net(), jnp.zeros((2, 3))) == {}


class NNXBlock(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)

    def __call__(self, x):
        return x + self.norm(self.up(x))


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.bn = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.blocks = nnx.List([NNXBlock(rngs), NNXBlock(rngs)])
        self.stack = nnx.vmap(lambda key: NNXBlock(nnx.Rngs(key)))(jax.random.split(rngs.params(), 3))
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.table = nnx.Embed(5, 4, rngs=rngs)
        self.token = nnx.Param(jnp.zeros((4,)))

    def __call__(self, x):
        x = self.bn(self.stem(x)).mean((1, 2)) + self.token[None] + self.table(jnp.array([0]))
        x = self.attention(x[:, None])[:, 0]
        for block in self.blocks:
            x = block(x)
        scan = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return scan(self.dropout(x), self.stack)


def test_nnx():
    found = roles(student(networks.from_nnx(NNXNet)), IMAGES)
    encoder = {path.removeprefix("encoder/"): role for path, role in found.items() if "encoder/" in path}
    assert {path: role for path, role in encoder.items() if "attention" not in path} == {
        "stem/kernel": Role("convolution"),
        "stem/bias": Role("convolution"),
        "bn/scale": Role("norm"),
        "bn/bias": Role("norm"),
        **{f"blocks/{i}/up/{name}": Role("linear") for i in range(2) for name in ("kernel", "bias")},
        **{f"blocks/{i}/norm/{name}": Role("norm") for i in range(2) for name in ("scale", "bias")},
        **{f"stack/up/{name}": Role("linear", stacked=True) for name in ("kernel", "bias")},
        **{f"stack/norm/{name}": Role("norm", stacked=True) for name in ("scale", "bias")},
        "table/embedding": Role("embedding"),
        "token": Role("other"),
    }
    assert {role for path, role in encoder.items() if "attention" in path} == {Role("linear")}
    assert found["projector/dense_0/kernel"] == Role("linear")


class Gain(eqx.Module):
    role: ClassVar[str] = "norm"
    gain: jax.Array

    def __call__(self, x, *, key=None):
        return self.gain * x


class EquinoxNet(eqx.Module):
    stem: eqx.nn.Conv2d
    blocks: eqx.nn.Sequential
    layers: list
    stack: eqx.nn.Linear
    table: eqx.nn.Embedding
    token: jax.Array

    def __init__(self, key):
        keys = jax.random.split(key, 8)
        self.stem = eqx.nn.Conv2d(3, 4, 3, key=keys[0])
        self.blocks = eqx.nn.Sequential(
            [eqx.nn.Linear(4, 4, key=keys[1]), eqx.nn.Lambda(jax.nn.relu), Gain(jnp.ones(4))]
        )
        self.layers = [eqx.nn.LayerNorm(4), eqx.nn.Linear(4, 4, key=keys[2])]
        self.stack = jax.vmap(lambda key: eqx.nn.Linear(4, 4, key=key))(jax.random.split(keys[3], 3))
        self.table = eqx.nn.Embedding(5, 4, key=keys[4])
        self.token = jnp.zeros(4)

    def __call__(self, x):
        x = self.blocks(self.stem(x).mean((1, 2)) + self.token + self.table(0))
        for layer in self.layers:
            x = layer(x)
        return jax.lax.scan(lambda x, layer: (layer(x), None), x, self.stack)[0]


def test_equinox():
    found = roles(networks.from_equinox(EquinoxNet), IMAGES)
    assert found == {
        "stem/weight": Role("convolution"),
        "stem/bias": Role("convolution"),
        "blocks/layers/0/weight": Role("linear"),
        "blocks/layers/0/bias": Role("linear"),
        "blocks/layers/2/gain": Role("norm"),
        "layers/0/weight": Role("norm"),
        "layers/0/bias": Role("norm"),
        "layers/1/weight": Role("linear"),
        "layers/1/bias": Role("linear"),
        "stack/weight": Role("linear", stacked=True),
        "stack/bias": Role("linear", stacked=True),
        "table/weight": Role("embedding"),
        "token": Role("other"),
    }
