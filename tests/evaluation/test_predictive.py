"""Monte-Carlo prediction: known answers, the same draws for everyone, and no memory of all of them."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import byov_jax as byov
from byov_jax.evaluation import batch_size, predictive

KEY = jax.random.key(0)
N, FEATURES, CLASSES, DRAWS = 10, 4, 3, 12
X = np.random.default_rng(0).normal(size=(N, FEATURES)).astype(np.float32)


def linear(params, x):
    return x @ params["weight"] + params["bias"][None]


def classify(params, x):
    return jax.nn.softmax(linear(params, x))


def with_features(params, x):
    return classify(params, x), linear(params, x)


def gaussian(outputs=CLASSES, log_var=-2.0):
    rng = np.random.default_rng(1)
    params = {
        "weight": jnp.asarray(rng.normal(size=(FEATURES, outputs)), jnp.float32),
        "bias": jnp.asarray(rng.normal(size=outputs), jnp.float32),
    }
    return byov.posterior.init(params, log_var=log_var)


Q = gaussian()


def predict(**arguments):
    return byov.predictive.predict(KEY, Q, classify, **({"x": X, "draws": DRAWS} | arguments))


def test_mean_and_variance_of_a_linear_gaussian_model_converge_as_one_over_root_k():
    """The output x w + b has mean x E[w] + E[b] and variance sum(x^2 var w) + var b: all is known."""
    q = gaussian(outputs=1)
    mean = np.asarray(linear(q.mean, X))
    variance = np.sum(np.square(X), axis=1, keepdims=True) * np.exp(-2.0) + np.exp(-2.0)
    errors = {}
    for draws in (100, 10_000):
        found = predictive.moments(KEY, q, linear, X, draws, chunk=100)
        # In standard errors: of the mean sigma / sqrt(K), of the variance sigma^2 sqrt(2 / K).
        errors[draws] = (
            (np.asarray(found.mean) - mean) / np.sqrt(variance / draws),
            (np.asarray(found.variance) - variance) / (variance * np.sqrt(2 / draws)),
        )
    for of_mean, of_variance in errors.values():
        # One weight draw serves all images, so the errors of different images are correlated: 4 sigma each.
        assert np.abs(of_mean).max() < 4.0
        assert np.abs(of_variance).max() < 4.0
        assert np.abs(of_mean).max() > 0.05


def test_an_image_sees_the_same_weights_whatever_the_company():
    whole = predict()
    assert whole.shape == (DRAWS, N, CLASSES)
    assert_allclose(predict(x=X[3:7]), whole[:, 3:7], rtol=1e-6)
    # The weights are the same bits; a program for another number of draws may round products otherwise.
    assert_allclose(predict(draws=5), whole[:5], rtol=1e-6)


def test_each_draw_is_a_sample_of_the_posterior():
    draws = predict(draws=3)
    for i, draw in enumerate(draws):
        weights = byov.posterior.sample(jax.random.fold_in(KEY, i), Q)
        assert_allclose(draw, classify(weights, X), rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 5, 12, 100])
def test_the_chunk_of_draws_changes_nothing(chunk):
    assert_allclose(predict(chunk=chunk), predict(chunk=1), rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 3, 10, 1000])
def test_the_batch_of_images_changes_nothing(batch):
    assert_allclose(predict(batch=batch), predict(batch=N), rtol=1e-6)
    found = predictive.statistics(KEY, Q, classify, X, DRAWS, batch=batch)
    assert_allclose(found.probs, predict().mean(0), rtol=1e-6)


def test_the_mean_mode_is_one_prediction_with_the_mean():
    found = predict(mode="mean")
    assert found.shape == (1, N, CLASSES)
    assert_allclose(found[0], classify(Q.mean, X), rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_statistics_are_those_of_the_draws(chunk):
    draws = np.asarray(predict(), np.float64)
    found = predictive.statistics(KEY, Q, with_features, X, DRAWS, chunk)
    entropy = -np.sum(draws * np.log(draws), axis=-1)
    mean = draws.mean(0)
    assert_allclose(found.probs, mean, rtol=1e-6)
    assert_allclose(found.variance, draws.var(0), rtol=1e-4, atol=1e-8)
    assert_allclose(found.entropy, -np.sum(mean * np.log(mean), axis=-1), rtol=1e-5)
    assert_allclose(found.expected_entropy, entropy.mean(0), rtol=1e-5)
    assert_allclose(found.mutual_information, byov.metrics.mutual_information(predict()), atol=2e-6)
    assert_allclose(found.std, byov.metrics.predictive_std(predict()), rtol=1e-4)
    features = np.asarray(predictive.predict(KEY, Q, linear, X, DRAWS))
    assert_allclose(found.latent_variance, features.var(0).mean(-1), rtol=1e-4)


def test_a_certain_posterior_has_no_mutual_information_and_no_std():
    for q in (byov.posterior.init(Q.mean, log_var=-80.0), byov.posterior.Posterior(Q.mean, _none(Q.mean))):
        found = predictive.statistics(KEY, q, with_features, X, DRAWS)
        assert_array_equal(found.mutual_information, np.zeros(N))
        assert_allclose(found.std, np.zeros(N), atol=1e-7)
        assert_allclose(found.latent_variance, np.zeros(N), atol=1e-12)
        assert_allclose(found.probs, classify(Q.mean, X), rtol=1e-6)


def _none(tree):
    return jax.tree.map(lambda _: None, tree)


def test_past_draws_are_not_held():
    """The outputs of a chunk of draws are freed before the next: what lives at once is a few of them."""
    alive = []
    images = np.zeros((2000, FEATURES), np.float32)
    for outputs in predictive._outputs(KEY, Q, classify, images, 40, 2, 2000):
        del outputs
        alive.append(sum(a.nbytes for a in jax.live_arrays() if a.shape[-1:] == (CLASSES,)))
    assert max(alive[1:]) <= alive[0] + 2 * 2 * images.shape[0] * CLASSES * 4


def test_nothing_is_compiled_again_for_more_draws_or_other_weights():
    predictive.statistics(KEY, Q, classify, X, 3, chunk=1)
    sampled, applied = predictive._sample._cache_size(), predictive._forward._cache_size()
    other = gaussian(log_var=-4.0)
    predictive.statistics(jax.random.key(5), other, classify, X, 7, chunk=1)
    assert (predictive._sample._cache_size(), predictive._forward._cache_size()) == (sampled, applied)


@pytest.mark.parametrize("function", ["predict", "moments", "statistics"])
def test_a_second_call_traces_and_compiles_nothing(function):
    traces, programs = [], []

    def counted(params, x):
        traces.append(x.shape)
        return classify(params, x)

    def listen(event, duration_secs, **_):
        programs.append(event)

    call = getattr(predictive, function)
    call(KEY, Q, counted, X, DRAWS)
    assert traces
    traces.clear()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        call(jax.random.key(5), gaussian(log_var=-4.0), counted, X + 1, DRAWS)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not traces
    assert "/jax/core/compile/backend_compile_duration" not in programs


def test_the_choice_of_the_batch_holds_no_arrays():
    q, x = gaussian(), jnp.asarray(X)
    references = [weakref.ref(array) for array in (*jax.tree.leaves(q), x)]
    batch_size.choose(classify, q.mean, x, DRAWS)
    predictive.statistics(KEY, q, classify, x, DRAWS)
    del q, x
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    assert batch_size._memory.cache_info().maxsize is not None


def test_a_little_free_memory_more_or_less_does_not_change_the_batch(monkeypatch):
    chosen = set()
    for budget in (5000, 6000, 8000):
        monkeypatch.setattr(batch_size, "_budget", lambda budget=budget: budget)
        chosen.add(batch_size.choose(classify, Q.mean, X, 1000))
    assert len(chosen) == 1


@pytest.mark.parametrize("outputs", [linear, lambda params, x: (linear(params, x), x)])
def test_statistics_refuse_logits(outputs):
    with pytest.raises(ValueError, match=r"apply must return probabilities, jax.nn.softmax of logits: prob"):
        predictive.statistics(KEY, Q, outputs, X, DRAWS)


def test_inside_jit_logits_give_nan():
    """Nothing can be raised there; negative entropies would be believed."""
    found = jax.jit(lambda key: predictive.statistics(key, Q, linear, X, 2, batch=N))(KEY)
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(found))
    inside = jax.jit(lambda key: predictive.statistics(key, Q, classify, X, 2, batch=N))(KEY)
    assert_allclose(inside.entropy, predictive.statistics(KEY, Q, classify, X, 2).entropy, rtol=1e-5)


def test_statistics_refuse_what_has_no_classes():
    for wrong, problem in ((lambda p, x: classify(p, x)[:, 0], "got"), (lambda p, x: x > 0, "got bool")):
        with pytest.raises(ValueError, match=rf"apply must return probabilities, .*{problem}"):
            predictive.statistics(KEY, Q, wrong, X, DRAWS)


def test_a_network_that_diverged_gives_nan():
    q = byov.posterior.point(jax.tree.map(lambda leaf: leaf * jnp.nan, Q.mean))
    found = predictive.statistics(KEY, q, classify, X, 1)
    assert np.isnan(found.entropy).all()
    assert np.isnan(found.std).all()


def test_it_can_be_compiled_as_part_of_something_larger():
    inside = jax.jit(lambda key, x: byov.predictive.predict(key, Q, classify, x, 2, 1, batch=N).mean(0))
    assert_allclose(inside(KEY, X), predict(draws=2).mean(0), rtol=1e-6)


def test_a_tree_of_inputs_and_outputs():
    def both(params, x):
        return {"first": linear(params, x["a"]), "second": x["b"]}

    found = predictive.predict(KEY, Q, both, {"a": X, "b": X[:, 0]}, 2, batch=4)
    assert found["first"].shape == (2, N, CLASSES)
    assert_array_equal(found["second"], np.stack([X[:, 0]] * 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 0}, "draws=0 must be at least 1"),
        ({"draws": True}, "draws=True must be an integer"),
        ({"chunk": 0}, "chunk=0 must be at least 1"),
        ({"batch": -1}, "batch=-1 must be at least 1"),
        ({"mode": "map"}, "mode='map': expected one of mc, mean"),
        ({"x": X[:0]}, "examples along the first axis"),
        ({"x": {"a": X, "b": X[:2]}}, "examples along the first axis"),
    ],
)
def test_what_it_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        predict(**arguments)


def test_the_chunk_follows_the_memory(monkeypatch):
    """Twice the memory, twice the draws at once; the need of one draw is at least its weights and outputs."""
    per_draw = 4 * (FEATURES * CLASSES + CLASSES + N * CLASSES)
    monkeypatch.setattr(batch_size, "_budget", lambda: 100 * per_draw)
    few = batch_size.choose(classify, Q.mean, X, 1000)
    monkeypatch.setattr(batch_size, "_budget", lambda: 200 * per_draw)
    more = batch_size.choose(classify, Q.mean, X, 1000)
    assert few.examples == more.examples == N
    assert 10 < few.draws <= 100
    assert 2 * few.draws <= more.draws <= 2 * few.draws + 1
    monkeypatch.setattr(batch_size, "_budget", lambda: 1)
    assert batch_size.choose(classify, Q.mean, X, 1000) == (1, 1)
