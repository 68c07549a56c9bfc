"""The examples of README.md and docs/transformations.md run, with small data in place of a user's."""

import re
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import byov_jax as byov
from byov_jax import metrics

ROOT = Path(__file__).parents[1]
KEY = jax.random.key(0)
LABELS = np.array([0, 1, 2, 1, 0, 2, -1, 0])
X = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)


def block(page: str, containing: str) -> str:
    """The one example of a page that has these words."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (found,) = [code for code in blocks if containing in code]
    return found


def run(code: str, **namespace) -> dict:
    exec(compile(code, "page", "exec"), namespace)
    return namespace


def test_a_flax_network_becomes_bayesian():
    code = block("README.md", "byov.Bayesian(")
    drawn = run(
        code.partition("y = net.apply(variables, x, use_mean=True)")[0],
        my_flax_module=nn.Dense(3),
        key=KEY,
        x=X,
    )
    found = run(code, my_flax_module=nn.Dense(3), key=KEY, x=X)
    at_mean = X @ found["variables"]["params"]["mean"]["kernel"]
    np.testing.assert_allclose(found["y"], at_mean, rtol=1e-5, atol=1e-6)
    assert np.abs(drawn["y"] - at_mean).max() > 1e-3
    np.testing.assert_allclose(
        found["nats"], byov.posterior.kl(byov.posterior.collect(found["variables"]["params"]))
    )


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
def test_the_method_is_a_pair_of_functions(capsys):
    code = block("README.md", "byov.methods.byov(")
    small = {'networks.vit("S/16")': 'networks.vit("Ti/16", depth=1)', "(4096, 256)": "(16, 8)"}
    for ours, theirs in small.items():
        assert ours in code
        code = code.replace(ours, theirs)
    found = run(code, byov=byov, key=KEY, images_uint8=np.zeros((2, 224, 224, 3), np.uint8))
    assert found["info"].skipped == 0
    assert "'temperature'" in capsys.readouterr().out


def test_calibrated_uncertainty_in_three_lines(capsys):
    q = byov.posterior.init({"kernel": jnp.ones((5, 3))})
    found = run(
        block("README.md", "byov.predictive.predict("),
        byov=byov,
        key=KEY,
        q=q,
        apply=lambda params, x: jax.nn.softmax(x @ params["kernel"]),
        images=X,
        labels=np.maximum(LABELS, 0),
    )
    assert found["draws"].shape == (30, 8, 3)
    assert np.sum(np.asarray(found["sparse"]["kernel"]) == 0.0) == 4
    assert capsys.readouterr().out


def test_rows_without_labels_are_left_out():
    code = block("docs/transformations.md", "metrics.ece(probs, labels, where=")
    scores = np.linspace(0.1, 0.9, 8)
    probs = np.asarray(jax.nn.softmax(X[:, :3]))
    mask = LABELS >= 0
    small = code.replace("classes=10", "classes=3")
    run(
        small,
        metrics=metrics,
        probs=probs,
        labels=LABELS,
        inside=scores,
        outside=scores,
        outside_mask=mask,
        mask=mask,
    )


def test_temperature_scaling_is_a_loop():
    code = block("docs/transformations.md", "log_temperature -=")
    logits, labels = 9.0 * X[:, :3], np.maximum(LABELS, 0)
    found = run(code, metrics=metrics, jax=jax, jnp=jnp, logits=logits, labels=labels, log_temperature=0.0)
    assert found["loss"](found["log_temperature"]) < found["loss"](0.0) - 0.5
