"""Properties of posteriors over random trees of parameters."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from byov_jax import posterior

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
shapes = st.sampled_from([(), (0,), (3,), (2, 3), (2, 1, 3)])
names = st.sampled_from(["a", "b", "kernel", "bias", "Dense_0"])


@st.composite
def arrays(draw):
    shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 2**16))
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


trees = st.recursive(
    arrays(),
    lambda children: st.one_of(
        st.dictionaries(names, children, min_size=1, max_size=3),
        st.lists(children, min_size=1, max_size=3),
        st.tuples(children, children),
    ),
    max_leaves=6,
)
log_vars = st.floats(-12.0, 2.0)


def same_structure(tree, like) -> bool:
    """Weights of less than 32 bits become float32."""
    return jax.tree.structure(tree) == jax.tree.structure(like) and all(
        a.shape == b.shape and a.dtype == jnp.float32
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
    )


@settings(deadline=None, max_examples=30)
@given(trees, log_vars, st.integers(0, 2**31 - 1))
def test_structure_shape_and_dtype_are_kept(params, log_var, seed):
    q = posterior.init(params, log_var=log_var)
    assert same_structure(q.mean, params)
    assert same_structure(q.log_var, params)
    assert same_structure(posterior.sample(jax.random.key(seed), q), params)
    assert same_structure(posterior.snr(q), params)
    assert posterior.size(q) == sum(leaf.size for leaf in jax.tree.leaves(params))
    kl = posterior.kl(q)
    assert kl.shape == ()
    assert kl.dtype == jnp.float32


@settings(deadline=None, max_examples=30)
@given(trees, log_vars, log_vars, st.floats(-2.0, 2.0))
def test_kl_is_zero_at_the_prior_and_positive_elsewhere(params, log_var, prior_log_var, shift):
    params = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    q = posterior.init(params, log_var=log_var)
    assert posterior.kl(q, q.mean, q.log_var) == 0.0
    kl = posterior.kl(q, jax.tree.map(lambda x: x + shift, params), prior_log_var)
    assert kl >= 0.0
    differs = abs(shift) > 1e-2 or abs(log_var - prior_log_var) > 1e-2
    if differs and posterior.size(q):
        assert kl > 0.0


@settings(deadline=None, max_examples=200)
@given(st.floats(-30.0, 30.0, width=32), st.floats(-(2.0**-10), 2.0**-10, width=32))
def test_rounding_never_makes_the_kl_negative(log_var, difference):
    q = posterior.init({"w": jnp.zeros(1)}, log_var=log_var)
    assert posterior.kl(q, 0.0, log_var + difference) >= 0.0
