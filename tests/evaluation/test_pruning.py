"""Pruning masks: exact counts, the right weights, and nothing but kernels."""

import math

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from byov_jax import Posterior, networks, posterior
from byov_jax.evaluation import pruning

MEAN = np.array([0.5, -0.2, 0.05, 1, -0.8, 0.02, 0.3, -0.1], np.float32)
SIGMA = np.array([0.1, 0.01, 0.05, 2, 0.4, 0.001, 0.6, 0.05], np.float32)

SHAPES = {"conv": (3, 3, 2, 5), "odd": (1, 13), "one": (1, 1), "up": (9, 10)}
FRACTIONS = np.unique([*np.linspace(0, 1, 29), 0.05, 0.1, 1 / 3, 0.999, *np.arange(1, 13, 2) / 26])


def flat(tree) -> dict:
    return {
        jax.tree_util.keystr(keys, simple=True, separator="/"): leaf
        for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def leaves(tree) -> dict[str, np.ndarray]:
    return {path: np.asarray(leaf) for path, leaf in flat(tree).items()}


def random_tree(seed: int, levels: int | None = None) -> dict:
    """Kernels of all shapes, and biases; with `levels`, only so many different magnitudes."""
    rng = np.random.default_rng(seed)

    def draw(shape):
        size = rng.integers(1, levels + 1, shape) if levels else rng.exponential(size=shape)
        return jnp.asarray(size * rng.choice([-1, 1], shape), jnp.float32)

    return {name: {"kernel": draw(shape), "bias": draw((3,))} for name, shape in sorted(SHAPES.items())}


def kept_by_numpy(score: np.ndarray, keep: float) -> np.ndarray:
    """The highest scores, found by a stable sort; half a weight is a whole one."""
    mask = np.zeros(score.size, bool)
    mask[np.argsort(-score.ravel(), kind="stable")[: math.floor(keep * score.size + 0.5)]] = True
    return mask.reshape(score.shape)


def test_golden_numbers():
    q = Posterior({"kernel": MEAN}, {"kernel": 2 * np.log(SIGMA)})
    by_snr, by_magnitude = pruning.snr_mask(q, 0.5), pruning.magnitude_mask(q.mean, 0.5)
    np.testing.assert_array_equal(np.flatnonzero(by_snr["kernel"]), [0, 1, 4, 5])
    np.testing.assert_array_equal(np.flatnonzero(by_magnitude["kernel"]), [0, 3, 4, 6])
    pruned = pruning.apply(by_snr, q.mean)["kernel"]
    np.testing.assert_array_equal(pruned, np.float32([0.5, -0.2, 0, 0, -0.8, 0.02, 0, 0]))


@pytest.mark.parametrize("levels", [None, 3, 1], ids=["distinct", "ties", "equal"])
def test_each_layer_keeps_exactly_its_best_and_ties_go_to_the_first(levels):
    params = random_tree(0, levels)
    for keep in FRACTIONS:
        mask = pruning.magnitude_mask(params, keep)
        for name in SHAPES:
            expected = kept_by_numpy(np.abs(params[name]["kernel"]), keep)
            np.testing.assert_array_equal(mask[name]["kernel"], expected, err_msg=f"{name} at {keep}")
            assert mask[name]["bias"] is None


@pytest.mark.parametrize("levels", [None, 3, 1], ids=["distinct", "ties", "equal"])
def test_the_global_scope_ranks_all_layers_together(levels):
    params = random_tree(1, levels)
    scores = np.concatenate([np.abs(params[name]["kernel"]).ravel() for name in sorted(SHAPES)])
    for keep in FRACTIONS:
        mask = pruning.magnitude_mask(params, keep, scope="global")
        found = np.concatenate([np.ravel(mask[name]["kernel"]) for name in sorted(SHAPES)])
        np.testing.assert_array_equal(found, kept_by_numpy(scores, keep), err_msg=f"at {keep}")


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_snr_ranks_the_mean_in_units_of_sigma(scope):
    mean, log_var = random_tree(2), random_tree(3)
    ratio = jax.tree.map(lambda m, r: np.asarray(m) * np.exp(np.asarray(r) / -2), mean, log_var)
    expected = pruning.magnitude_mask(ratio, 0.3, scope=scope)
    jax.tree.map(
        np.testing.assert_array_equal, pruning.snr_mask(Posterior(mean, log_var), 0.3, scope=scope), expected
    )


def test_half_a_weight_is_kept():
    params = {"kernel": jnp.arange(1.0, 6.0)}
    assert pruning.sparsity(pruning.magnitude_mask(params, 0.5)).overall == (3, 5)
    assert pruning.sparsity(pruning.magnitude_mask(params, 0.3)).overall == (2, 5)
    assert pruning.sparsity(pruning.magnitude_mask(params, 0.29)).overall == (1, 5)


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_random_mask_has_the_counts_of_the_others(scope):
    params, key = random_tree(0), jax.random.key(0)
    for keep in FRACTIONS[::4]:
        count = pruning.sparsity(pruning.random_mask(key, params, keep, scope=scope))
        expected = pruning.sparsity(pruning.magnitude_mask(params, keep, scope=scope))
        assert count.overall == expected.overall
        if scope == "layer":
            assert count == expected


def test_a_random_mask_prefers_no_weight():
    params, draws = {"a": {"kernel": jnp.ones(3)}, "b": {"kernel": jnp.ones((2, 5))}}, 2000

    @jax.jit
    @jax.vmap
    def masks(key):
        return {scope: pruning.random_mask(key, params, 0.4, scope=scope) for scope in ("layer", "global")}

    found = masks(jax.random.split(jax.random.key(1), draws))
    expected = {"layer": {"a": 1 / 3, "b": 4 / 10}, "global": {"a": 5 / 13, "b": 5 / 13}}
    for scope, fractions in expected.items():
        for name, p in fractions.items():
            frequency = np.mean(found[scope][name]["kernel"], axis=0)
            # Four standard deviations of a frequency over the draws.
            np.testing.assert_allclose(frequency, p, atol=4 * math.sqrt(p * (1 - p) / draws))


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_keeping_all_changes_no_bit_and_keeping_none_leaves_zeros(scope):
    params = random_tree(4)
    params["up"]["kernel"] = params["up"]["kernel"].at[0, :3].set(jnp.array([-0.0, 1e-40, jnp.inf]))
    q = posterior.init(params)
    for mask in (
        pruning.snr_mask(q, 1, scope=scope),
        pruning.magnitude_mask(params, 1.0, scope=scope),
        pruning.random_mask(jax.random.key(0), params, 1.0, scope=scope),
    ):
        pruned = leaves(pruning.apply(mask, params))
        assert {path: leaf.tobytes() for path, leaf in pruned.items()} == {
            path: leaf.tobytes() for path, leaf in leaves(params).items()
        }
    nothing = pruning.apply(pruning.magnitude_mask(params, 0, scope=scope), params)
    for name in SHAPES:
        assert not np.any(nothing[name]["kernel"])
        np.testing.assert_array_equal(nothing[name]["bias"], params[name]["bias"])


def test_types_stay_as_they_are():
    params = {"a": {"kernel": jnp.ones((2, 2), jnp.bfloat16)}, "b": {"kernel": np.ones((2, 3), np.float32)}}
    pruned = pruning.apply(pruning.magnitude_mask(params, 0.5, scope="global"), params)
    assert pruned["a"]["kernel"].dtype == jnp.bfloat16
    assert pruned["b"]["kernel"].dtype == jnp.float32


def abstract(module, size=8, channels=1):
    image = jax.ShapeDtypeStruct((2, size, size, channels), jnp.float32)
    return jax.eval_shape(module.init, jax.random.key(0), image)["params"]


def filled(shapes, seed=0):
    rng = np.random.default_rng(seed)

    def fill(leaf):
        return rng.normal(size=leaf.shape).astype(np.float32) if hasattr(leaf, "shape") else leaf

    return jax.tree.map(fill, shapes)


NETWORKS = {
    "vit": networks.vit("S/16"),
    "scanned": networks.vit("B/16", scan=True),
    "resnet": networks.resnet(50),
    "group": networks.resnet(18, norm="group"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_only_kernels_of_a_network_are_pruned(name):
    params = abstract(NETWORKS[name], size=224, channels=3)
    mask = jax.eval_shape(lambda params: pruning.magnitude_mask(params, 0.5), params)
    masks, shapes = ({path: leaf.shape for path, leaf in flat(tree).items()} for tree in (mask, params))
    assert masks == {path: shape for path, shape in shapes.items() if path.endswith("kernel")}
    assert any("conv" in path or "patch" in path for path in masks)
    assert len(masks) < len(shapes)


@pytest.mark.parametrize("wrapped", [False, True])
def test_of_a_student_and_a_classifier_only_the_encoder_is_pruned(wrapped):
    for module in (tiny.student(tiny.vit()), networks.Classifier(tiny.vit(), 3)):
        params = {"params": abstract(module)} if wrapped else abstract(module)
        mask = jax.eval_shape(lambda params: pruning.magnitude_mask(params, 0.5), params)
        expected = {path for path in flat(params) if "encoder/" in path and path.endswith("kernel")}
        assert set(flat(mask)) == expected != set()


def test_where_chooses_among_the_kernels():
    params = filled(abstract(tiny.student()))
    mask = pruning.magnitude_mask(params, 0.5, where=lambda path: path.startswith("projector"))
    assert {path.split("/")[0] for path in leaves(mask)} == {"projector"}
    mask = pruning.magnitude_mask(params, 0.5, where=lambda path: True)
    assert set(leaves(mask)) == {path for path in leaves(params) if path.endswith("kernel")}


def test_scanned_blocks_are_pruned_like_unrolled_ones():
    student = tiny.student(tiny.vit(depth=2, scan=True))
    roles = networks.roles(student, jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32))
    scanned = filled(abstract(student))
    # One depth is far larger: pruned as one layer, the other would lose everything.
    scanned["encoder"]["blocks"] = jax.tree.map(
        lambda leaf: leaf * np.array([1, 100]).reshape(-1, *[1] * (leaf.ndim - 1)),
        scanned["encoder"]["blocks"],
    )
    rest = {name: part for name, part in scanned["encoder"].items() if name != "blocks"}
    unrolled = rest | {
        f"blocks_{depth}": jax.tree.map(lambda leaf, depth=depth: leaf[depth], scanned["encoder"]["blocks"])
        for depth in range(2)
    }
    mlp = {"where": lambda path: "/mlp/" in path}
    found = pruning.magnitude_mask(scanned, 0.3, roles=roles, **mlp)
    expected = pruning.magnitude_mask({"encoder": unrolled}, 0.3, **mlp)
    for depth in range(2):
        jax.tree.map(
            lambda a, b, depth=depth: np.testing.assert_array_equal(a[depth], b),
            found["encoder"]["blocks"],
            expected["encoder"][f"blocks_{depth}"],
        )
    found, expected = pruning.sparsity(found, roles=roles), pruning.sparsity(expected)
    assert len(found.layers) == 4
    assert found.layers == {path.replace("blocks_", "blocks/"): n for path, n in expected.layers.items()}
    assert found.overall == expected.overall


def test_a_list_of_blocks_is_not_a_stack():
    params = {"blocks": [{"up": {"kernel": jnp.array([[1.0, 2.0], [3.0, 4.0]])}}]}
    mask = pruning.magnitude_mask(params, 0.5)
    np.testing.assert_array_equal(mask["blocks"][0]["up"]["kernel"], [[False, False], [True, True]])
    assert pruning.sparsity(mask).layers == {"blocks/0/up/kernel": (2, 4)}


class Custom(eqx.Module):
    layers: list
    norm: eqx.nn.LayerNorm
    activation: object = jax.nn.relu


def test_an_equinox_model_keeps_its_norms_and_functions():
    def build():
        key, norm = jax.random.key(0), eqx.nn.LayerNorm(4)
        return Custom([eqx.nn.Linear(6, 4, key=key), norm, eqx.nn.Conv2d(1, 3, 3, key=key)], norm)

    model = filled(eqx.filter_eval_shape(build))
    pruned = pruning.apply(pruning.magnitude_mask(model, 0.5), model)
    assert isinstance(pruned, Custom)
    assert pruned.activation is model.activation
    assert np.count_nonzero(pruned.layers[0].weight) == 12
    assert np.count_nonzero(pruned.layers[2].weight) == 14
    np.testing.assert_array_equal(pruned.layers[0].bias, model.layers[0].bias)
    for after, before in ((pruned.layers[1], model.layers[1]), (pruned.norm, model.norm)):
        np.testing.assert_array_equal(after.weight, before.weight)


def test_an_nnx_state_is_a_tree_too():
    state = nnx.state(nnx.Linear(3, 4, kernel_init=nnx.initializers.ones, rngs=nnx.Rngs(0)))
    mask = pruning.snr_mask(posterior.init(state), 0.25)
    assert pruning.sparsity(mask).layers == {"kernel": (3, 12)}
    assert np.count_nonzero(pruning.apply(mask, state)["kernel"].get_value()) == 3


def test_a_kernel_without_a_posterior_is_left_alone():
    params = random_tree(0)
    q = posterior.init(params, where="conv")
    for scope in ("layer", "global"):
        mask = pruning.snr_mask(q, 0.0, scope=scope)
        assert set(leaves(mask)) == {"conv/kernel"}
        np.testing.assert_array_equal(pruning.apply(mask, params)["up"]["kernel"], params["up"]["kernel"])
    with pytest.raises(ValueError, match="none of the 4 kernels has a posterior"):
        pruning.snr_mask(posterior.point(params), 0.5)


def test_a_mask_prunes_draws_as_well():
    q = Posterior({"kernel": jnp.asarray(MEAN)}, {"kernel": jnp.asarray(2 * np.log(SIGMA))})
    drawn = posterior.sample(jax.random.key(0), q)
    pruned = pruning.apply(pruning.snr_mask(q, 0.5), drawn)
    np.testing.assert_array_equal(
        pruned["kernel"], drawn["kernel"] * np.array([1, 1, 0, 0, 1, 1, 0, 0], np.float32)
    )


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_masks_are_the_same_inside_jit(scope):
    q = Posterior(random_tree(2), random_tree(3))

    @jax.jit
    def prune(q):
        mask = pruning.snr_mask(q, 0.3, scope=scope)
        return mask, pruning.apply(mask, q.mean)

    mask = pruning.snr_mask(q, 0.3, scope=scope)
    chex.assert_trees_all_equal(prune(q), (mask, pruning.apply(mask, q.mean)))


def test_sparsity_counts_what_the_mask_says():
    mask = {"a": {"kernel": jnp.array([True, False, True, True]), "bias": None}, "b": np.array([[False]])}
    found = pruning.sparsity(mask)
    assert found.layers == {"a/kernel": (3, 4), "b": (0, 1)}
    assert found.overall == (3, 5)
    assert found.overall.kept_fraction == pytest.approx(0.6)
    assert found.layers["a/kernel"].pruned_fraction == pytest.approx(0.25)
    with pytest.raises(ValueError, match="None everywhere"):
        pruning.sparsity({"a": None})


def test_a_sweep_evaluates_every_criterion_at_every_fraction():
    q = Posterior({"kernel": MEAN}, {"kernel": 2 * np.log(SIGMA)})
    criteria = {
        "snr": lambda keep: pruning.snr_mask(q, keep),
        "magnitude": lambda keep: pruning.magnitude_mask(q.mean, keep),
    }
    rows = pruning.sweep(lambda p: float(jnp.sum(jnp.abs(p["kernel"]))), q.mean, criteria, (1.0, 0.5, 0.3))
    expected = [
        ("snr", 1.0, 1.0, 2.97),
        ("snr", 0.5, 0.5, 1.52),
        ("snr", 0.3, 0.25, 0.22),
        ("magnitude", 1.0, 1.0, 2.97),
        ("magnitude", 0.5, 0.5, 2.6),
        ("magnitude", 0.3, 0.25, 1.8),
    ]
    assert [row[:3] for row in rows] == [row[:3] for row in expected]
    np.testing.assert_allclose([row.result for row in rows], [row[3] for row in expected], rtol=1e-6)
    by_default = pruning.sweep(lambda p: None, q.mean, criteria)
    assert [row.keep for row in by_default] == [*pruning.FRACTIONS] * 2


def test_a_sweep_refuses_a_fraction_before_it_evaluates():
    calls = []
    with pytest.raises(ValueError, match=r"keep must be a fraction in \[0, 1\], got 50"):
        pruning.sweep(calls.append, {}, {"any": lambda keep: {}}, (1.0, 50))
    assert not calls


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("criterion", ["snr", "magnitude", "random"])
def test_a_traced_fraction_keeps_what_a_number_does(criterion, scope):
    params = random_tree(0)
    masks = {
        "snr": lambda keep: pruning.snr_mask(posterior.init(params), keep, scope=scope),
        "magnitude": lambda keep: pruning.magnitude_mask(params, keep, scope=scope),
        "random": lambda keep: pruning.random_mask(jax.random.key(0), params, keep, scope=scope),
    }
    mask = masks[criterion]
    mapped = jax.jit(jax.vmap(mask))(jnp.asarray(FRACTIONS, jnp.float32))
    for i, keep in enumerate(FRACTIONS):
        chex.assert_trees_all_equal(jax.tree.map(lambda kept, i=i: kept[i], mapped), mask(float(keep)))
    chex.assert_trees_all_equal(jax.jit(mask)(0.3), mask(0.3))
    chex.assert_trees_all_equal(mask(jnp.float32(0.3)), mask(0.3))


def test_the_count_of_a_traced_fraction_is_that_of_a_number():
    """Also where half a weight decides, and where float32 cannot hold the fraction."""
    sizes = (*range(1, 40), 768 * 3072, 5 * 10**6 + 5)
    fractions = (*pruning.FRACTIONS, *(i / 20 for i in range(21)), 1 / 3, 0.7, 0.123)
    for n in sizes:
        for keep in fractions if n < 100 else pruning.FRACTIONS:
            assert int(pruning._kept_count(jnp.float32(keep), n)) == pruning._kept_count(keep, n), (keep, n)


def test_a_traced_fraction_out_of_range_keeps_nothing_or_everything():
    kernel = {"kernel": jnp.arange(1.0, 7.0).reshape(2, 3)}
    keeps = jnp.array([-0.1, jnp.nan, 1.1, jnp.inf])
    kept = jax.vmap(lambda keep: pruning.magnitude_mask(kernel, keep))(keeps)["kernel"]
    np.testing.assert_array_equal(kept.sum(axis=(1, 2)), [0, 0, 6, 6])
    with pytest.raises(ValueError, match=r"keep must be a fraction in \[0, 1\], got 1.5"):
        pruning.magnitude_mask(kernel, jnp.float32(1.5))


def test_swapped_arguments_are_refused():
    """`apply(params, mask)` would give the mask as weights."""
    params = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}
    mask = {"kernel": jnp.ones((2, 3), bool), "bias": None}
    swapped = {"kernel": mask["kernel"], "bias": jnp.ones(3)}
    message = r"the mask at '\w+' must be booleans, got float32: the arguments are apply\(mask, params\)"
    for call in (pruning.apply, jax.jit(pruning.apply)):
        with pytest.raises(ValueError, match=message):
            call(params, swapped)
        with pytest.raises(ValueError, match="must be booleans, got int32"):
            call(jax.tree.map(lambda kept: kept.astype(jnp.int32), mask), params)
        assert call(mask, params)["kernel"].dtype == jnp.float32


@pytest.mark.parametrize("keep", [-0.1, 1.1, 50, float("nan"), float("inf")])
def test_keep_is_a_fraction(keep):
    params = random_tree(0)
    for call in (
        lambda: pruning.snr_mask(posterior.init(params), keep),
        lambda: pruning.magnitude_mask(params, keep),
        lambda: pruning.random_mask(jax.random.key(0), params, keep),
    ):
        with pytest.raises(ValueError, match=r"keep must be a fraction in \[0, 1\]"):
            call()


def test_wrong_arguments_are_refused():
    params = random_tree(0)
    with pytest.raises(ValueError, match="scope must be 'layer' or 'global', got 'network'"):
        pruning.magnitude_mask(params, 0.5, scope="network")
    with pytest.raises(ValueError, match=r"no kernel to prune.*conv/kernel"):
        pruning.magnitude_mask(params, 0.5, where=lambda path: False)
    with pytest.raises(ValueError, match="no kernel to prune"):
        pruning.magnitude_mask({"bias": jnp.ones(3)}, 0.5)
    with pytest.raises(ValueError, match="pass its mean"):
        pruning.magnitude_mask(posterior.init(params), 0.5)


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_what_cannot_be_ranked_is_refused(scope):
    params = random_tree(0)
    params["odd"]["kernel"] = params["odd"]["kernel"].at[0, 5].set(jnp.nan)
    with pytest.raises(ValueError, match="'odd/kernel' cannot be ranked: NaN"):
        pruning.magnitude_mask(params, 0.5, scope=scope)
    with pytest.raises(ValueError, match="'odd/kernel' cannot be ranked: NaN"):
        pruning.snr_mask(posterior.init(params), 0.5, scope=scope)
    params["odd"] = {"kernel": jnp.ones((1, 13)), "bias": jnp.full(3, jnp.nan)}
    pruning.magnitude_mask(params, 0.5, scope=scope)  # a bias is not ranked


def test_a_mask_of_other_parameters_is_refused():
    params = random_tree(0)
    mask = pruning.magnitude_mask(params, 0.5)
    with pytest.raises(ValueError, match="does not have the structure of the parameters"):
        pruning.apply({"up": mask["up"]}, params)
    mask["up"]["kernel"] = mask["up"]["kernel"].T
    with pytest.raises(ValueError, match=r"mask at 'up/kernel' has shape \(10, 9\), the parameter \(9, 10\)"):
        pruning.apply(mask, params)
