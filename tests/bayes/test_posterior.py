"""Posterior: reference values of the KL, statistics of draws, and errors that name a path."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from flax import nnx

from byov_jax import Posterior, posterior
from byov_jax.role import Role

GOLDEN_KL = [
    # mu_q, rho_q, mu_p, rho_p, kl, d/dmu, d/drho
    (0.0, -10.0, 0.0, 0.0, 4.5000227, 0.0, -0.4999773),
    (0.02, -10.0, 0.0, 0.0, 4.5002227, 0.02, -0.4999773),
    (0.5, -2.0, 0.25, -1.0, 0.2688860277, 0.67957046, -0.31606028),
    (0.03, -10.0, 0.02, np.log(1e-6), 70.2922096, 1e4, 22.199965),
]


def scalar_posterior(mean, log_var):
    return Posterior({"w": jnp.full((1,), mean)}, {"w": jnp.full((1,), log_var)})


@pytest.mark.parametrize(("mu_q", "rho_q", "mu_p", "rho_p", "kl", "d_mu", "d_rho"), GOLDEN_KL)
def test_kl_and_its_gradient_have_the_closed_form_values(mu_q, rho_q, mu_p, rho_p, kl, d_mu, d_rho):
    q = scalar_posterior(mu_q, rho_q)
    value, gradient = jax.value_and_grad(posterior.kl)(q, mu_p, rho_p)
    np.testing.assert_allclose(value, kl, rtol=1e-6)
    np.testing.assert_allclose(gradient.mean["w"], [d_mu], rtol=1e-6)
    np.testing.assert_allclose(gradient.log_var["w"], [d_rho], rtol=1e-6)


def test_kl_agrees_with_monte_carlo():
    q = Posterior({"w": jnp.array([0.3, -0.7, 1.1])}, {"w": jnp.array([-1.0, 0.2, -2.0])})
    prior_mean, prior_log_var = {"w": jnp.array([0.1, 0.0, 1.0])}, {"w": jnp.array([0.3, -0.4, 0.0])}
    draws = jax.vmap(lambda key: posterior.sample(key, q)["w"])(jax.random.split(jax.random.key(0), 200_000))

    def log_density(mean, log_var):
        return scipy.stats.norm.logpdf(np.asarray(draws), mean, np.exp(0.5 * np.asarray(log_var))).sum(1)

    ratios = log_density(q.mean["w"], q.log_var["w"]) - log_density(prior_mean["w"], prior_log_var["w"])
    standard_error = ratios.std() / np.sqrt(len(ratios))
    assert abs(ratios.mean() - posterior.kl(q, prior_mean, prior_log_var)) < 4 * standard_error


def test_kl_of_many_weights_is_summed_without_losing_digits():
    rng = np.random.default_rng(0)
    mean = rng.normal(0.0, 0.02, 5_000_000).astype(np.float32)
    log_var = np.full(mean.shape, -10.0, np.float32)
    exact = 0.5 * np.sum(10.0 + np.exp(-10.0) + mean.astype(np.float64) ** 2 - 1.0)
    got = posterior.kl(Posterior({"w": jnp.asarray(mean)}, {"w": jnp.asarray(log_var)}))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact, rtol=2e-7)


def test_kl_accepts_scalars_and_trees():
    q = posterior.init({"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2))}}, log_var=-1.0)
    mean, log_var = (jax.tree.map(lambda x, v=v: jnp.full(x.shape, v), q.mean) for v in (0.5, -2.0))
    np.testing.assert_allclose(posterior.kl(q, 0.5, -2.0), posterior.kl(q, mean, log_var), rtol=1e-6)


def test_kl_of_a_point_estimate_is_zero():
    assert posterior.kl(posterior.point({"w": jnp.ones(3)})) == 0.0


def test_draws_have_the_right_mean_and_variance():
    mean, log_var = jnp.array([1.0, -2.0, 0.0]), jnp.array([-3.0, 0.0, -10.0])
    q = Posterior({"w": mean}, {"w": log_var})
    n = 10_000
    draws = jax.vmap(lambda key: posterior.sample(key, q)["w"])(jax.random.split(jax.random.key(1), n))
    sigma = np.exp(0.5 * np.asarray(log_var))
    assert np.all(np.abs(draws.mean(0) - mean) < 4 * sigma / np.sqrt(n))
    np.testing.assert_allclose(draws.var(0), sigma**2, rtol=4 * np.sqrt(2 / n))
    for column, m, s in zip(np.asarray(draws).T, mean, sigma, strict=True):
        assert scipy.stats.kstest((column - m) / s, "norm").pvalue > 1e-3


def test_same_key_same_draw():
    q = posterior.init({"w": jnp.ones((3, 2))}, log_var=0.0)
    a, b, c = (posterior.sample(jax.random.key(seed), q)["w"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert np.all(np.asarray(a) != np.asarray(c))


def test_noise_of_a_leaf_does_not_change_when_a_layer_is_added_elsewhere():
    small = posterior.init({"b": {"w": jnp.zeros(4)}}, log_var=0.0)
    large = posterior.init({"a": jnp.zeros(7), "b": {"w": jnp.zeros(4)}, "c": jnp.zeros(4)}, log_var=0.0)
    key = jax.random.key(0)
    drawn = posterior.sample(key, large)
    np.testing.assert_array_equal(posterior.sample(key, small)["b"]["w"], drawn["b"]["w"])
    assert np.all(np.asarray(drawn["b"]["w"]) != np.asarray(drawn["c"]))


def test_legacy_and_typed_keys_both_work():
    q = posterior.init({"w": jnp.zeros(4)}, log_var=0.0)
    typed = posterior.sample(jax.random.key(0), q)
    legacy = posterior.sample(jax.random.PRNGKey(0), q)
    np.testing.assert_array_equal(typed["w"], legacy["w"])


def test_point_estimates_are_not_sampled():
    params = {"w": jnp.ones(3), "frozen": jnp.arange(3.0), "count": jnp.arange(3)}
    q = posterior.init(params, where="^w$", log_var=0.0)
    drawn = posterior.sample(jax.random.key(0), q)
    assert drawn["frozen"] is params["frozen"]
    assert drawn["count"] is params["count"]
    assert q.log_var["frozen"] is None
    assert posterior.snr(q)["frozen"] is None
    assert posterior.size(q) == 3


def test_gradient_of_the_expected_loss_with_respect_to_log_var_agrees_with_finite_differences():
    @jax.jit
    def expected_loss(log_var):
        q = Posterior({"w": jnp.array([0.4, -0.2])}, {"w": log_var})
        keys = jax.random.split(jax.random.key(0), 512)
        return jnp.mean(jax.vmap(lambda key: jnp.sum(jnp.sin(3.0 * posterior.sample(key, q)["w"])))(keys))

    with jax.enable_x64(True):
        at, step = np.array([-1.0, -0.5]), 1e-5
        gradient = jax.grad(expected_loss)(at)
        for i in range(2):
            bump = step * np.eye(2)[i]
            difference = (expected_loss(at + bump) - expected_loss(at - bump)) / (2 * step)
            np.testing.assert_allclose(gradient[i], difference, rtol=1e-7)


def test_snr_is_mean_over_sigma():
    mean = jnp.array([0.5, -0.2, 0.05, 1.0, -0.8, 0.02, 0.3, -0.1])
    sigma = jnp.array([0.1, 0.01, 0.05, 2.0, 0.4, 0.001, 0.6, 0.05])
    q = Posterior({"w": mean}, {"w": 2.0 * jnp.log(sigma)})
    np.testing.assert_allclose(posterior.snr(q)["w"], [5, 20, 1, 0.5, 2, 20, 0.5, 2], rtol=1e-5)


def test_init_takes_a_tree_of_log_variances():
    params = {"a": jnp.zeros(2), "b": jnp.zeros(3)}
    log_var = {"a": jnp.array([-1.0, -2.0]), "b": jnp.full(3, -3.0)}
    np.testing.assert_array_equal(posterior.init(params, log_var=log_var).log_var["a"], [-1.0, -2.0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_log_variance_that_is_not_finite_is_an_error_with_its_path(bad):
    params = {"layer": {"kernel": jnp.ones(2)}}
    with pytest.raises(ValueError, match=r"log_var at 'layer/kernel' is not finite"):
        posterior.init(params, log_var=bad)
    q = Posterior(params, {"layer": {"kernel": jnp.array([-10.0, bad])}})
    for use in (posterior.snr, posterior.kl, lambda q: posterior.sample(jax.random.key(0), q)):
        with pytest.raises(ValueError, match=r"log_var at 'layer/kernel' is not finite"):
            use(q)


def test_mismatched_trees_are_an_error_with_the_path():
    q = Posterior({"a": jnp.ones(2), "b": jnp.ones(2)}, {"a": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"log_var does not have the structure .* 'b' is in only one"):
        posterior.kl(q)
    q = posterior.init({"a": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"prior mean does not have the structure .* 'b' is in only one"):
        posterior.kl(q, {"a": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"prior log_var at 'b' has shape \(3,\), the parameter has \(2,\)"):
        posterior.kl(q, 0.0, {"a": jnp.ones(2), "b": jnp.ones(3)})
    with pytest.raises(ValueError, match="the prior has None at 'b', which is Bayesian"):
        posterior.kl(q, {"a": jnp.ones(2), "b": None})
    with pytest.raises(ValueError, match=r"log_var at 'a' has shape dict"):
        posterior.snr(Posterior({"a": jnp.ones(2)}, {"a": {"deeper": jnp.ones(2)}}))
    with pytest.raises(ValueError, match="'n' is not a floating-point array"):
        posterior.kl(Posterior({"n": jnp.arange(2)}, {"n": jnp.ones(2)}))


def test_gradients_of_draws_and_of_the_kl_in_closed_form_are_those_of_autodiff():
    q = Posterior({"w": jnp.array([0.4, -0.2])}, {"w": jnp.array([-3.0, -1.0])})
    key = jax.random.key(0)
    noise = (posterior.sample(key, q)["w"] - q.mean["w"]) / jnp.exp(0.5 * q.log_var["w"])

    def by_hand(q):
        return jnp.sum(jnp.sin(q.mean["w"] + jnp.exp(0.5 * q.log_var["w"]) * noise))

    def drawn(q):
        return jnp.sum(jnp.sin(posterior.sample(key, q)["w"]))

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), jax.grad(drawn)(q), jax.grad(by_hand)(q)
    )
    tangent = jax.tree.map(jnp.ones_like, q)  # forward mode too
    np.testing.assert_allclose(
        jax.jvp(drawn, (q,), (tangent,))[1], jax.jvp(by_hand, (q,), (tangent,))[1], rtol=1e-5
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        posterior.kl_gradient(q, 0.25, -1.0),
        jax.grad(posterior.kl)(q, 0.25, -1.0),
    )


@pytest.mark.parametrize("moment", ["mean", "log_var"])
def test_a_moment_of_the_prior_that_is_not_finite_is_an_error(moment):
    q = posterior.init({"kernel": jnp.ones(3)})
    for value in (jnp.inf, jnp.nan, {"kernel": jnp.array([0.0, jnp.nan, 0.0])}):
        with pytest.raises(ValueError, match=f"the prior's {moment} at 'kernel' is not finite"):
            posterior.kl(q, **{moment: value})


def test_kl_between_two_posteriors():
    q = Posterior({"a": jnp.array([0.5]), "b": jnp.ones(2)}, {"a": jnp.array([-2.0]), "b": None})
    p = Posterior({"a": jnp.array([0.25]), "b": jnp.zeros(2)}, {"a": jnp.array([-1.0]), "b": None})
    np.testing.assert_allclose(posterior.kl(q, p), 0.2688860277, rtol=1e-6)
    assert posterior.kl(q, q) == 0.0
    with pytest.raises(ValueError, match="the prior has None at 'b'"):
        posterior.kl(posterior.init(q.mean), p)


def test_priors_broadcast_scalars_prefixes_and_axes():
    q = posterior.init({"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2)), "d": jnp.ones(())}}, log_var=-1.0)
    full = jax.tree.map(lambda x: jnp.full(x.shape, 0.5), q.mean)
    expected = posterior.kl(q, full, -2.0)
    zero_d = jax.tree.map(lambda x: jnp.asarray(0.5), q.mean)
    for given in (0.5, jnp.asarray(0.5), {"a": 0.5, "b": 0.5}, zero_d):
        np.testing.assert_allclose(posterior.kl(q, given, -2.0), expected, rtol=1e-6)
    rows = {"a": 0.5, "b": {"c": jnp.full((1, 2), 0.5), "d": 0.5}}
    np.testing.assert_allclose(posterior.kl(q, rows, -2.0), expected, rtol=1e-6)


def test_the_implied_l2_is_the_mean_curvature_of_the_kl_in_the_means():
    q = posterior.init({"a": jnp.arange(3.0), "b": jnp.ones(1), "c": jnp.ones(2)}, where="a|b")
    prior = {"a": -2.0, "b": -1.0, "c": 0.0}
    expected = 0.1 * (3.0 * np.exp(2.0) + np.exp(1.0)) / 4.0
    np.testing.assert_allclose(posterior.implied_l2(q, 0.5, prior, weight=0.1), expected, rtol=1e-6)
    assert posterior.implied_l2(posterior.point(q.mean)) == 0.0


def test_kl_by_leaf_sums_to_the_kl():
    q = posterior.init({"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2))}}, where="^b/|^a", log_var=-1.0)
    terms = posterior.kl_by_leaf(q)
    assert set(terms) == {"a", "b/c"}
    np.testing.assert_allclose(sum(terms.values()), posterior.kl(q), rtol=1e-6)


@pytest.mark.parametrize("prior_log_var", [-200.0, -100.0, 100.0, 200.0])
@pytest.mark.parametrize("log_var", [-100.0, -10.0, 0.0])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_kl_and_snr_are_finite_at_every_extreme(prior_log_var, log_var, mean):
    q = Posterior({"w": jnp.full(2, mean)}, {"w": jnp.full(2, log_var)})
    value, gradient = jax.value_and_grad(posterior.kl)(q, 0.0, prior_log_var)
    assert np.isfinite(value)
    assert value >= 0.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    assert np.all(np.isfinite(posterior.snr(q)["w"]))


def test_the_snr_of_a_zero_weight_without_variance_is_zero():
    q = Posterior({"w": jnp.zeros(1)}, {"w": jnp.full(1, -jnp.inf)})
    assert jax.jit(posterior.snr)(q)["w"] == 0.0


def test_collections_that_are_not_parameters_are_refused():
    variables = {"params": {"w": jnp.ones(2)}, "batch_stats": {"var": jnp.ones(2)}}
    with pytest.raises(ValueError, match=r"collections params, batch_stats: pass variables\['params'\]"):
        posterior.init(variables)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(4, rngs=rngs)

    model = Model(nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"holds BatchStat too: pass nnx.state\(model, nnx.Param\)"):
        posterior.init(nnx.state(model))
    assert posterior.size(posterior.init(nnx.state(model, nnx.Param))) == 8


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_weights_of_16_bits_become_float32_and_are_sampled_and_learn_in_it(dtype):
    q = posterior.init({"w": jnp.ones(1000, dtype), "n": jnp.arange(3)})
    assert q.mean["w"].dtype == q.log_var["w"].dtype == jnp.float32
    assert q.mean["n"].dtype == jnp.int32
    assert len(np.unique(posterior.sample(jax.random.key(0), q)["w"])) > 900
    moved = optax.apply_updates(q.log_var, {"w": jnp.full(1000, 1e-4), "n": None})
    assert np.all(moved["w"] > q.log_var["w"])


def test_sampling_consumes_a_key_once():
    q = posterior.init({"a": jnp.ones(3), "b": jnp.ones(4)})
    with jax.debug_key_reuse(True):
        jax.jit(posterior.sample)(jax.random.key(0), q)
        posterior.sample(jax.random.key(1), q)


def test_posteriors_inside_a_network_are_collected():
    params = {
        "plain": {"kernel": jnp.ones(2)},
        "first": {"mean": {"w": jnp.ones(3)}, "log_var": {"w": jnp.full(3, -10.0)}},
        "deep": {"second": {"mean": {"w": jnp.ones(5)}, "log_var": {"w": jnp.full(5, -1.0)}}},
    }
    q = posterior.collect(params)
    assert posterior.size(q) == 8
    parts = posterior.kl(Posterior(**params["first"])) + posterior.kl(Posterior(**params["deep"]["second"]))
    np.testing.assert_allclose(posterior.kl(q), parts, rtol=1e-6)
    assert q.log_var["plain"] == {"kernel": None}


def test_sampling_is_traced_once_for_all_keys():
    traces = []

    @jax.jit
    def draw(key, q):
        traces.append(None)
        return posterior.sample(key, q)

    q = posterior.init({"w": jnp.ones(3)})
    for seed in range(5):
        draw(jax.random.key(seed), q)
    assert len(traces) == 1


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_noise_depends_on_the_path_alone_for_every_generator(implementation):
    small = posterior.init({"b": jnp.zeros(4)}, log_var=0.0)
    large = posterior.init({"a": jnp.zeros(4), "b": jnp.zeros(4)}, log_var=0.0)
    key = jax.random.key(0, impl=implementation)
    np.testing.assert_array_equal(posterior.sample(key, small)["b"], posterior.sample(key, large)["b"])


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            lambda v: {"encoder": v, "head": v},
            "variables at 'encoder' with the collections params, batch_stats",
        ),
        (lambda v: [v], "variables at '0' with the collections params, batch_stats"),
        (lambda v: {"batch_stats": v["batch_stats"]}, "with the collections batch_stats"),
    ],
)
def test_collections_are_refused_wherever_they_are(tree, message):
    variables = {"params": {"w": jnp.ones(2)}, "batch_stats": {"var": jnp.ones(2)}}
    with pytest.raises(ValueError, match=message):
        posterior.init(tree(variables))
    assert posterior.size(posterior.init({"params": variables["params"]})) == 2


@pytest.mark.parametrize("log_var", [200.0, -101.0, jnp.asarray(200.0), {"w": jnp.array([-10.0, 200.0])}])
def test_an_initial_log_variance_without_a_sigma_is_refused(log_var):
    with pytest.raises(ValueError, match=r"log_var.* must be in \[-100, 100\]"):
        posterior.init({"w": jnp.ones(2)}, log_var=log_var)


def test_kl_by_leaf_of_stacked_layers():
    q = posterior.init({"blocks": {"kernel": jnp.arange(12.0).reshape(3, 2, 2)}, "b": jnp.ones(2)})
    roles = {"blocks/kernel": Role("linear", stacked=True), "b": Role("linear")}
    terms = posterior.kl_by_leaf(q, 0.5, -1.0, roles=roles)
    assert set(terms) == {"blocks/0/kernel", "blocks/1/kernel", "blocks/2/kernel", "b"}
    layer = posterior.init({"kernel": q.mean["blocks"]["kernel"][1]})
    np.testing.assert_allclose(terms["blocks/1/kernel"], posterior.kl(layer, 0.5, -1.0), rtol=1e-6)
    np.testing.assert_allclose(sum(terms.values()), posterior.kl(q, 0.5, -1.0), rtol=1e-6)
