"""The residual network: sizes, names, strides, zero initialisation and both kinds of norm."""

from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from byov_jax.networks import ResNet, resnet
from byov_jax.networks.residual import Block, Conv

TINY = {"stages": (1, 1), "bottleneck": False, "width": 4, "stem": "small"}
IMAGES = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8, 8, 3)), jnp.float32)


def randomize(tree):
    """Replace every leaf by noise around one, so that no scale is zero and variances are positive."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: jnp.asarray(rng.uniform(-0.7, 2.7, x.shape) ** 2, x.dtype), tree)


@cache
def build(**overrides):
    model = ResNet(**(TINY | overrides))
    return model, randomize(jax.eval_shape(model.init, jax.random.key(0), IMAGES))


def run(model, variables, x=IMAGES, **kwargs):
    return jax.jit(lambda v: model.apply(v, x, **kwargs))(variables)


@pytest.mark.parametrize(
    ("depth", "overrides", "side", "features", "count"),
    [
        (50, {}, 224, 2048, 23_508_032),
        (18, {}, 224, 512, 11_176_512),
        (18, {"stem": "small"}, 32, 512, 11_168_832),
        (18, {"stem": "small", "norm": "group"}, 32, 512, 11_168_832),
    ],
)
def test_parameter_count(depth, overrides, side, features, count):
    model = resnet(depth, **overrides)
    images = jnp.zeros((2, side, side, 3))
    output, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), images)
    assert output.shape == (2, features)
    assert sum(x.size for x in jax.tree.leaves(variables["params"])) == count
    assert ("batch_stats" in variables) == (model.norm == "batch")


def test_names_of_resnet_50():
    params = jax.eval_shape(resnet(50).init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))["params"]
    blocks = {f"stage{s}_block{i}" for s, n in enumerate((3, 4, 6, 3), start=1) for i in range(n)}
    assert set(params) == {"conv_stem", "norm_stem"} | blocks
    inside = {f"{kind}{i}" for kind in ("conv", "norm") for i in (1, 2, 3)}
    for name in blocks:
        shortcut = {"conv_shortcut", "norm_shortcut"} if name.endswith("block0") else set()
        assert set(params[name]) == inside | shortcut
    for path in flatten_dict(params):
        assert path[-1] == "kernel" if path[-2].startswith("conv") else path[-2].startswith("norm")


@pytest.mark.parametrize(("stem", "sides"), [("imagenet", [16, 8, 4, 2, 1]), ("small", [32, 32, 16, 8, 4])])
def test_sides_of_the_stages(stem, sides):
    model = ResNet(**(TINY | {"stages": (1, 1, 1, 1), "stem": stem}))
    _, state = jax.eval_shape(
        lambda k: model.init_with_output(k, jnp.zeros((1, 32, 32, 3)), capture_intermediates=True),
        jax.random.key(0),
    )
    outputs = state["intermediates"]
    names = ["conv_stem", "stage1_block0", "stage2_block0", "stage3_block0", "stage4_block0"]
    assert [outputs[name]["__call__"][0].shape[1] for name in names] == sides


@pytest.mark.parametrize(("side", "stride"), [(1, 2), (3, 1), (3, 2), (7, 2)])
def test_convolution_matches_numpy(side, stride):
    x = np.asarray(IMAGES[:1, :, :7], np.float64)
    model = Conv(features=2, side=side, stride=stride)
    variables = randomize(jax.eval_shape(model.init, jax.random.key(0), IMAGES))
    kernel = np.asarray(variables["params"]["kernel"], np.float64)
    half = (side - 1) // 2
    padded = np.pad(x, ((0, 0), (half, half), (half, half), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), (1, 2))[:, ::stride, ::stride]
    expected = np.einsum("byxcij,ijco->byxo", windows, kernel)
    np.testing.assert_allclose(run(model, variables, IMAGES[:1, :, :7]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_strided_branch_depends_on_every_pixel(bottleneck):
    """A stride on a 1x1 convolution would skip three pixels of four (version 1, not 1.5)."""
    model = Block(4, 2, bottleneck, Conv, partial(nn.GroupNorm, num_groups=2))
    variables = randomize(jax.eval_shape(model.init, jax.random.key(0), IMAGES))
    for name in ("conv_shortcut", "norm_shortcut"):
        variables["params"][name] = jax.tree.map(jnp.zeros_like, variables["params"][name])
    gradient = jax.jit(jax.grad(lambda x: jnp.square(model.apply(variables, x)).sum()))(IMAGES)
    assert np.all(np.abs(gradient).max((0, 3)) > 0)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_blocks_start_as_their_shortcuts(bottleneck):
    model = ResNet(**(TINY | {"bottleneck": bottleneck}))
    last = "norm3" if bottleneck else "norm2"

    @jax.jit
    def scales(key):
        params = flatten_dict(model.init(key, IMAGES)["params"])
        return {path[:-1]: x for path, x in params.items() if path[-1] == "scale"}

    for path, scale in scales(jax.random.key(0)).items():
        np.testing.assert_array_equal(scale, 0 if path[-1] == last else 1, err_msg=str(path))


def test_kernels_start_small():
    key = jax.random.key(0, impl="rbg")  # compiles faster than threefry
    kernel = jax.jit(Conv(16, 3).init)(key, IMAGES)["params"]["kernel"]
    assert np.abs(kernel).max() <= 0.04
    assert 0.01 < kernel.std() < 0.025


def test_train_updates_running_statistics_and_evaluation_uses_them():
    model, variables = build()
    output, updates = run(model, variables, train=True, mutable=["batch_stats"])
    stem = Conv(4, 3).apply({"params": variables["params"]["conv_stem"]}, IMAGES)
    old, new = variables["batch_stats"]["norm_stem"], updates["batch_stats"]["norm_stem"]
    np.testing.assert_allclose(new["mean"], 0.9 * old["mean"] + 0.1 * stem.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(new["var"], 0.9 * old["var"] + 0.1 * stem.var((0, 1, 2)), rtol=1e-4)

    evaluation = run(model, variables)
    assert not np.allclose(evaluation, output, atol=0.1)
    np.testing.assert_allclose(run(model, variables, IMAGES[:1]), evaluation[:1], rtol=1e-4)


def test_synchronised_batch_norm_equals_a_large_batch():
    model, variables = build()
    weights = jnp.linspace(-1, 1, 8)[None]

    def loss(model, params, x):
        output, updates = model.apply(variables | {"params": params}, x, train=True, mutable=["batch_stats"])
        return jnp.mean(weights * jnp.square(output)), updates["batch_stats"]

    def sharded(params, x):
        losses, stats = jax.vmap(partial(loss, model.copy(axis_name="devices"), params), axis_name="devices")(
            x.reshape(2, 2, 8, 8, 3)
        )
        return losses.mean(), jax.tree.map(lambda s: s[0], stats)

    params = variables["params"]
    expected = jax.jit(jax.value_and_grad(partial(loss, model), has_aux=True))(params, IMAGES)
    actual = jax.jit(jax.value_and_grad(sharded, has_aux=True))(params, IMAGES)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), actual, expected)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_norms_keep_the_precision_of_large_means(norm):
    """E[x^2] - E[x]^2 in float32 would be wrong by more than the variance itself."""
    x = 1e4 + np.random.default_rng(2).standard_normal((4, 8, 8, 32))
    expected = x.astype(np.float32).astype(np.float64)
    axes = (0, 1, 2) if norm == "batch" else (1, 2)
    expected = (expected - expected.mean(axes, keepdims=True)) / expected.std(axes, keepdims=True)
    module = ResNet(**(TINY | {"width": 32, "norm": norm}))._norm(train=True)()
    output, _ = jax.jit(module.init_with_output)(jax.random.key(0), jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(output, expected, atol=5e-3)


def test_group_norm_is_independent_of_the_batch_and_of_train():
    model, variables = build(norm="group", width=32)
    assert set(variables) == {"params"}
    batch = run(model, variables, train=True)
    np.testing.assert_allclose(run(model, variables, IMAGES[1:2]), batch[1:2], rtol=1e-4)


def test_weight_standardisation_ignores_scale_and_shift_of_a_kernel():
    model, variables = build(norm="group", width=32)
    apply = jax.jit(model.apply)
    expected = apply(variables, IMAGES)
    params = flatten_dict(variables["params"])
    for path in params:
        if path[-1] == "kernel":
            changed = {"params": unflatten_dict(params | {path: 5 * params[path] + 2})}
            np.testing.assert_allclose(apply(changed, IMAGES), expected, rtol=1e-3, err_msg=str(path))


def test_standardised_kernels_have_mean_zero_and_variance_one():
    model = Conv(4, 3, standardize=True)
    variables = randomize(jax.eval_shape(model.init, jax.random.key(0), IMAGES))
    impulses = jnp.eye(3).reshape(3, 1, 1, 3)
    used = model.apply(variables, jnp.pad(impulses, ((0, 0), (1, 1), (1, 1), (0, 0))))
    np.testing.assert_allclose(used.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(used.var((0, 1, 2)), 1, rtol=1e-4)


@pytest.mark.parametrize(("norm", "width"), [("batch", 4), ("group", 32)])
def test_bfloat16_keeps_parameters_statistics_and_output_in_float32(norm, width):
    model, variables = build(norm=norm, width=width)
    half = model.copy(dtype=jnp.bfloat16)
    created = jax.eval_shape(half.init, jax.random.key(0), IMAGES)
    output, updates = run(half, variables, train=True, mutable=["batch_stats"])
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves((created, output, updates)))
    expected, _ = run(model, variables, train=True, mutable=["batch_stats"])
    assert not np.array_equal(output, expected)
    np.testing.assert_allclose(output, expected, rtol=0.05, atol=0.05)


def test_unknown_depth():
    with pytest.raises(ValueError, match="unknown ResNet depth 34: expected one of 18, 50"):
        resnet(34)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"stem": "cifar"}, "stem='cifar': expected 'imagenet' or 'small'"),
        ({"norm": "layer"}, "norm='layer': expected 'batch' or 'group'"),
        ({"norm": "group", "width": 48}, "width=48: group norm needs a multiple of 32"),
    ],
)
def test_bad_field(overrides, message):
    with pytest.raises(ValueError, match=message):
        resnet(18, **overrides)


def test_remat_changes_neither_gradient_nor_statistics():
    def gradient(remat):
        model = ResNet(stages=(1, 1), bottleneck=False, width=4, stem="small", remat=remat)
        variables = jax.jit(model.init)(jax.random.key(0), IMAGES)
        params, rest = variables["params"], {"batch_stats": variables["batch_stats"]}

        def loss(params):
            y, updated = model.apply({"params": params, **rest}, IMAGES, train=True, mutable=["batch_stats"])
            return jnp.sum(jnp.square(y)), updated

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient(True), gradient(False)
    )
