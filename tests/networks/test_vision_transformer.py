"""The vision transformer: sizes, names, arithmetic against NumPy, stochastic depth, scan and remat."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeCollectionNotFound
from flax.traverse_util import flatten_dict
from scipy.special import erf

from byov_jax.networks import ViT, vit
from byov_jax.networks.vision_transformer import Block, PatchEmbedding, attend, drop_path, pool, sincos

TINY = {"patch": 4, "width": 16, "depth": 2, "heads": 2}
IMAGES = jnp.asarray(np.random.default_rng(1).standard_normal((3, 8, 12, 3)), jnp.float32)


def randomize(tree, scale=0.3):
    """Replace every leaf by noise, so that no branch is negligible and no bias zero."""
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: jnp.asarray(scale * rng.standard_normal(x.shape), x.dtype), tree)


@cache
def build(**overrides):
    model = ViT(**(TINY | overrides))
    return model, randomize(jax.eval_shape(model.init, jax.random.key(0), IMAGES))


def run(model, variables, x=IMAGES, **kwargs):
    return jax.jit(lambda v: model.apply(v, x, **kwargs))(variables)


@cache
def evaluate(**overrides):
    """Return features and block features, cached because compiling is slow."""
    model, variables = build(**overrides)
    return run(model, variables), run(model, variables, method="block_features")


@cache
def gradient(**overrides):
    """Return value and gradient of a loss at the parameters of the plain model."""
    model, variables = build(pool="token", scan=False)
    model = model.copy(**overrides)
    weights = jnp.linspace(-1, 1, TINY["width"])[None]
    loss = jax.jit(jax.value_and_grad(lambda v: jnp.sum(weights * model.apply(v, IMAGES))))
    return loss(restack(variables) if model.scan else variables)


def restack(variables):
    """Parameters of unrolled blocks in the layout of scanned ones."""
    params = dict(variables["params"])
    blocks = [params.pop(f"blocks_{i}") for i in range(TINY["depth"])]
    return {"params": params | {"blocks": jax.tree.map(lambda *x: jnp.stack(x), *blocks)}}


def assert_trees_close(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4), actual, expected)


@pytest.mark.parametrize(
    ("name", "overrides", "count"),
    [
        ("Ti/16", {}, 5_524_416),
        ("S/16", {}, 21_665_664),
        ("B/16", {}, 85_798_656),
        ("B/16", {"positions": "sincos"}, 85_647_360),
        ("B/16", {"positions": "sincos", "scan": True}, 85_647_360),
        ("B/16", {"pool": "mean"}, 85_798_656 - 2 * 768),
        ("L/16", {"scan": True}, 303_301_632),
    ],
)
def test_parameter_count(name, overrides, count):
    model = vit(name, **overrides)
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 224, 224, 3)))
    assert set(variables) == {"params"}
    assert sum(x.size for x in jax.tree.leaves(variables)) == count


def test_names():
    inside = [
        *("norm_attention/scale", "norm_attention/bias", "norm_mlp/scale", "norm_mlp/bias"),
        *("attention/qkv/kernel", "attention/qkv/bias", "attention/out/kernel", "attention/out/bias"),
        *("mlp/up/kernel", "mlp/up/bias", "mlp/down/kernel", "mlp/down/bias"),
    ]
    outside = {
        *("patch_embedding/kernel", "patch_embedding/bias", "class_token", "position_embedding"),
        *("norm/scale", "norm/bias"),
    }
    unrolled = flatten_dict(build()[1]["params"], sep="/")
    assert set(unrolled) == outside | {f"blocks_{i}/{name}" for i in range(2) for name in inside}
    scanned = flatten_dict(build(scan=True)[1]["params"], sep="/")
    assert set(scanned) == outside | {f"blocks/{name}" for name in inside}
    assert all(scanned[f"blocks/{name}"].shape == (2, *unrolled[f"blocks_0/{name}"].shape) for name in inside)
    bare = build(pool="mean", positions="sincos")[1]["params"]
    assert not {"class_token", "position_embedding"} & set(bare)


def test_initialisation():
    model = ViT(**TINY, scan=True)
    key = jax.random.key(0, impl="rbg")  # compiles twice as fast as threefry
    params = flatten_dict(jax.jit(model.init)(key, IMAGES)["params"], sep="/")
    for name, value in params.items():
        if name.endswith("bias"):
            assert np.all(value == 0), name
        elif name.endswith("scale"):
            assert np.all(value == 1), name
        else:
            assert np.abs(value).max() <= 0.04, name
            assert 0.01 < value.std() < 0.025, name
    assert not np.allclose(*params["blocks/mlp/up/kernel"])


def test_init_std_scales_the_initial_weights():
    key = jax.random.key(0, impl="rbg")
    default, wide = (jax.jit(ViT(**TINY, scan=True, **f).init)(key, IMAGES) for f in ({}, {"init_std": 0.2}))
    default, wide = (flatten_dict(variables["params"]) for variables in (default, wide))
    for path, value in default.items():
        factor = 1.0 if path[-1] in ("bias", "scale") else 10.0
        np.testing.assert_allclose(factor * value, wide[path], rtol=1e-5)


def test_concat_keeps_all_tokens_in_their_order():
    tokens = jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(pool(tokens, "concat"), np.arange(24.0).reshape(2, 12))


def test_patch_embedding_is_a_strided_convolution():
    model = PatchEmbedding(patch=4, width=5, frozen=False, dtype=None)
    variables = randomize(jax.eval_shape(model.init, jax.random.key(0), IMAGES))
    expected = jax.lax.conv_general_dilated(
        IMAGES, variables["params"]["kernel"], (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    expected = expected.reshape(3, 2 * 3, 5) + variables["params"]["bias"][None, None]
    np.testing.assert_allclose(run(model, variables), expected, rtol=1e-5, atol=1e-5)


def layer_norm(x, p):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def dense(x, p):
    return x @ p["kernel"] + p["bias"]


def test_block_matches_numpy():
    x = jnp.asarray(np.random.default_rng(3).standard_normal((2, 5, 12)), jnp.float32)
    model = Block(heads=3, mlp_width=7, dtype=None)
    variables = randomize(jax.eval_shape(model.init, jax.random.key(0), x, None), scale=1.0)
    p = jax.tree.map(lambda v: np.asarray(v, np.float64), variables["params"])

    expected = np.asarray(x, np.float64)
    for b in range(2):
        q, k, v = np.split(dense(layer_norm(expected[b], p["norm_attention"]), p["attention"]["qkv"]), 3, -1)
        mixed = []
        for h in range(3):
            columns = slice(4 * h, 4 * h + 4)
            weights = np.exp(q[:, columns] @ k[:, columns].T / np.sqrt(4))
            mixed.append(weights / weights.sum(1, keepdims=True) @ v[:, columns])
        expected[b] += dense(np.concatenate(mixed, 1), p["attention"]["out"])
    hidden = dense(layer_norm(expected, p["norm_mlp"]), p["mlp"]["up"])
    expected += dense(hidden * (1 + erf(hidden / np.sqrt(2))) / 2, p["mlp"]["down"])

    np.testing.assert_allclose(run(model, variables, x, rate=None), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-6), (jnp.bfloat16, 2e-2)])
def test_attention_equals_that_of_jax(dtype, tolerance):
    rng = np.random.default_rng(4)
    q, k, v, cotangent = (jnp.asarray(rng.standard_normal((2, 9, 3, 16)), dtype) for _ in range(4))
    output, pull = jax.vjp(attend, q, k, v)
    exact = [x.astype(jnp.float32) for x in (q, k, v, cotangent)]
    expected, expected_pull = jax.vjp(jax.nn.dot_product_attention, *exact[:3])
    assert output.dtype == dtype
    for ours, reference in zip((output, *pull(cotangent)), (expected, *expected_pull(exact[3])), strict=True):
        error = jnp.linalg.norm((ours - reference).astype(jnp.float32)) / jnp.linalg.norm(reference)
        assert error < tolerance


def test_attention_in_bfloat16_has_no_logits_in_float32():
    x = jax.ShapeDtypeStruct((2, 9, 3, 16), jnp.bfloat16)
    products = [
        equation.outvars[0].aval.dtype
        for equation in jax.make_jaxpr(attend)(x, x, x).eqns
        if equation.primitive.name == "dot_general"
    ]
    assert products == [jnp.bfloat16, jnp.bfloat16]


@pytest.mark.parametrize(("pool", "scan"), [("token", False), ("mean", True), ("concat", True)])
def test_output_is_the_norm_of_the_last_of_the_block_features(pool, scan):
    output, features = evaluate(pool=pool, scan=scan)
    width = 6 * 16 if pool == "concat" else 16
    assert output.shape == (3, width)
    assert features.shape == (2, 3, width)
    norm = jax.tree.map(np.asarray, build(pool=pool, scan=scan)[1]["params"]["norm"])
    np.testing.assert_allclose(output, layer_norm(np.asarray(features[-1]), norm), rtol=1e-4, atol=1e-5)


def test_block_features_are_those_of_shallower_networks():
    model, variables = build(pool="token", scan=False)
    _, features = evaluate(pool="token", scan=False)
    shallow = run(model.copy(depth=1), variables, method="block_features")
    np.testing.assert_allclose(features[:1], shallow, rtol=1e-4, atol=1e-5)
    assert not np.allclose(features[0], features[1], atol=0.1)


def test_scan_equals_unrolled():
    model, variables = build(pool="token", scan=False)
    features = run(model.copy(scan=True), restack(variables), method="block_features")
    np.testing.assert_allclose(features, evaluate(pool="token", scan=False)[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
def test_scan_and_remat_change_no_gradient(scan):
    value, grads = gradient()
    assert_trees_close(gradient(scan=scan, remat=True), (value, restack(grads) if scan else grads))


def test_drop_path_drops_whole_samples_and_keeps_the_expectation():
    x = jnp.arange(1.0, 25.0).reshape(4, 3, 2)
    keys = jax.random.split(jax.random.key(5), 4000)
    draws = np.asarray(jax.vmap(lambda k: drop_path(k, x, 0.25))(keys))
    np.testing.assert_allclose(draws.mean(0), x, rtol=0.05)
    dropped = (draws == 0).reshape(4000, 4, 6)
    assert np.array_equal(dropped.any(2), dropped.all(2))
    kept = np.broadcast_to(x[None], draws.shape)[draws != 0]
    np.testing.assert_allclose(draws[draws != 0], kept / 0.75, rtol=1e-6)
    np.testing.assert_allclose(dropped[..., 0].mean(0), 0.25, atol=0.03)
    assert abs(np.corrcoef(dropped[:, 0, 0], dropped[:, 1, 0])[0, 1]) < 0.06


def test_drop_path_of_rate_zero_is_the_identity():
    np.testing.assert_array_equal(drop_path(jax.random.key(0), jnp.ones((4, 3, 2)), 0.0), 1)


@pytest.mark.parametrize("scan", [False, True])
def test_drop_path_is_independent_per_branch_with_rates_that_rise_linearly(scan):
    model, variables = build(depth=3, drop_path=0.8, scan=scan)
    images = jnp.broadcast_to(IMAGES[:1], (2000, *IMAGES.shape[1:]))
    rngs = {"drop_path": jax.random.key(6)}
    features = np.asarray(run(model, variables, images, train=True, rngs=rngs, method="block_features"))
    assert np.ptp(features[0], axis=0).max() < 1e-5
    skipped = np.all(np.diff(features, axis=0) == 0, axis=-1)  # both branches of a block dropped
    np.testing.assert_allclose(skipped.mean(1), [0.4**2, 0.8**2], atol=0.04)
    np.testing.assert_allclose(skipped.all(0).mean(), 0.4**2 * 0.8**2, atol=0.03)


@pytest.mark.parametrize("scan", [False, True])
def test_drop_path_needs_train_and_its_stream(scan):
    model, variables = build(drop_path=0.8, scan=scan)

    def program(**kwargs):
        return str(jax.make_jaxpr(lambda v: model.apply(v, IMAGES, **kwargs))(variables))

    rngs = {"drop_path": jax.random.key(7)}
    assert program(train=True) == program()
    assert "random_bits" not in program(rngs=rngs)
    assert "random_bits" in program(train=True, rngs=rngs)


def test_sincos_is_the_formula():
    rows, columns, width = 2, 3, 8
    table = np.asarray(sincos(rows, columns, width))
    for y in range(rows):
        for x in range(columns):
            for i in range(width // 4):
                omega = 1 / 10_000 ** (i / (width // 4))
                expected = [np.sin(y * omega), np.cos(y * omega), np.sin(x * omega), np.cos(x * omega)]
                np.testing.assert_allclose(table[y * columns + x, i :: width // 4], expected, atol=1e-6)


def test_sincos_distinguishes_positions():
    table = np.asarray(sincos(14, 14, 64))
    distances = np.linalg.norm(table[:, None] - table[None], axis=-1)
    assert distances[~np.eye(196, dtype=bool)].min() > 0.5


@pytest.mark.parametrize("positions", ["learned", "sincos"])
def test_position_of_the_class_token(positions):
    model, variables = build(depth=1, positions=positions)
    params = variables["params"]
    idle = params | {"blocks_0": jax.tree.map(jnp.zeros_like, params["blocks_0"])}
    token = run(model, {"params": idle}, method="block_features")[0, 0]
    expected = params["class_token"][0, 0]
    if positions == "learned":
        expected += params["position_embedding"][0, 0]
    np.testing.assert_allclose(token, expected, rtol=1e-6)


def test_positions_of_the_patches():
    model, variables = build(depth=1, positions="sincos", pool="mean")
    zeros = jax.tree.map(jnp.zeros_like, variables)
    features = run(model, zeros, method="block_features")[0, 0]
    np.testing.assert_allclose(features, sincos(2, 3, 16).mean(0), rtol=1e-5)


@pytest.mark.parametrize(("pool", "scan"), [("token", False), ("mean", True)])
def test_bfloat16_keeps_parameters_and_output_in_float32(pool, scan):
    model, variables = build(pool=pool, scan=scan)
    half = model.copy(dtype=jnp.bfloat16)
    params = jax.eval_shape(half.init, jax.random.key(0), IMAGES)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
    output, (expected, _) = run(half, variables), evaluate(pool=pool, scan=scan)
    assert output.dtype == jnp.float32
    assert not np.array_equal(output, expected)
    np.testing.assert_allclose(output, expected, atol=0.05)


def test_frozen_patch_is_random_and_no_parameter():
    model = PatchEmbedding(patch=4, width=16, frozen=True, dtype=None)
    first, second = (model.init(jax.random.key(seed), IMAGES) for seed in (0, 1))
    assert set(first) == {"frozen"}
    kernel = first["frozen"]["kernel"]
    assert kernel.shape == (4, 4, 3, 16)
    assert 0.01 < kernel.std() < 0.025
    assert not np.allclose(kernel, second["frozen"]["kernel"])
    np.testing.assert_array_equal(first["frozen"]["bias"], 0)


def test_frozen_patch_computes_what_a_trained_one_does():
    model, variables = build(pool="token", scan=False)
    params = dict(variables["params"])
    frozen = {"patch_embedding": params.pop("patch_embedding")}
    model = model.copy(frozen_patch=True)
    assert set(jax.eval_shape(model.init, jax.random.key(0), IMAGES)["params"]) == set(params)
    output = run(model, {"params": params, "frozen": frozen})
    np.testing.assert_allclose(output, evaluate(pool="token", scan=False)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(ScopeCollectionNotFound, match="frozen"):
        model.apply({"params": params}, IMAGES)


def test_samples_do_not_interact():
    model, variables = build(pool="token", scan=False)
    single = run(model, variables, IMAGES[1:2], train=True)
    np.testing.assert_allclose(single, evaluate(pool="token", scan=False)[0][1:2], rtol=1e-4, atol=1e-5)


def test_presets():
    model = vit("S/8", drop_path=0.1, depth=3)
    assert model == ViT(patch=8, width=384, depth=3, heads=6, drop_path=0.1)


@pytest.mark.parametrize("name", ["H/14", "B", "B/0", "B/x", "b/16", "B/16 "])
def test_unknown_preset(name):
    with pytest.raises(ValueError, match=rf"unknown ViT '{name}'.*Ti, S, B, L"):
        vit(name)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"heads": 3}, "width=16 is not a multiple of heads=3"),
        ({"pool": "max"}, "pool='max': expected 'token', 'mean' or 'concat'"),
        ({"positions": "rotary"}, "positions='rotary': expected 'learned' or 'sincos'"),
        ({"positions": "sincos", "width": 18}, "width=18: sincos positions need a multiple of 4"),
        ({"drop_path": 1.0}, r"drop_path=1.0: expected a rate in \[0, 1\)"),
        ({"drop_path": -0.1}, "drop_path=-0.1"),
    ],
)
def test_bad_field(overrides, message):
    with pytest.raises(ValueError, match=message):
        ViT(**(TINY | overrides))


@pytest.mark.parametrize("shape", [(8, 10), (10, 8)])
def test_image_that_does_not_divide_into_patches(shape):
    message = rf"{shape[0]}x{shape[1]} image .* patches of 4x4: resize or pad"
    with pytest.raises(ValueError, match=message):
        ViT(**TINY).init(jax.random.key(0), jnp.zeros((1, *shape, 3)))
