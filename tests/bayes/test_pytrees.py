"""The same functions on every kind of parameter tree: Flax linen, Flax NNX, Equinox, plain containers."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from byov_jax import posterior

X = jnp.ones((2, 3))


def linen_case():
    module = nn.Dense(4)
    return module.init(jax.random.key(0), X), lambda params: module.apply(params, X)


def nnx_case():
    graph, state = nnx.split(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
    return state, lambda params: nnx.merge(graph, params)(X)


def equinox_case():
    model = eqx.nn.MLP(3, 4, width_size=5, depth=1, key=jax.random.key(0))
    return model, lambda params: jax.vmap(params)(X)


def plain_case():
    return [jnp.ones((3, 4)), (jnp.zeros(4),)], lambda params: X @ params[0] + params[1][0][None]


CASES = [linen_case, nnx_case, equinox_case, plain_case]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_posterior_on_any_pytree(case):
    params, forward = case()
    q = posterior.init(params, log_var=-4.0)
    floats = [leaf for leaf in jax.tree.leaves(params) if eqx.is_inexact_array(leaf)]
    assert posterior.size(q) == sum(leaf.size for leaf in floats)

    drawn = posterior.sample(jax.random.key(1), q)
    assert jax.tree.structure(drawn) == jax.tree.structure(params)
    assert not np.allclose(forward(drawn), forward(params))
    np.testing.assert_array_equal(forward(posterior.mean(q)), forward(params))

    expected = sum(0.5 * np.sum(4.0 + np.exp(-4.0) + np.square(leaf) - 1.0) for leaf in floats)
    np.testing.assert_allclose(posterior.kl(q), expected, rtol=1e-6)
    assert len(jax.tree.leaves(posterior.snr(q))) == len(floats)


def test_paths_do_not_depend_on_the_container():
    state, _ = nnx_case()
    q = posterior.init(state, where="^kernel$")
    assert posterior.size(q) == 12


def test_gradients_flow_through_an_equinox_model():
    model, forward = equinox_case()
    arrays, static = eqx.partition(posterior.init(model), eqx.is_inexact_array)

    def loss(arrays):
        return jnp.sum(jnp.square(forward(posterior.sample(jax.random.key(0), eqx.combine(arrays, static)))))

    gradient = jax.jit(jax.grad(loss))(arrays)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient.log_var))
