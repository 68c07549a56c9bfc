"""Layerwise sigma and SNR."""

import jax.numpy as jnp
import numpy as np

from byov_jax import Posterior, layer_statistics, posterior, selected
from byov_jax.role import Role


def test_mean_and_max_of_sigma_and_snr():
    q = Posterior(
        {"w": jnp.array([2.0, -6.0]), "b": jnp.ones(3)}, {"w": jnp.log(jnp.array([4.0, 9.0])), "b": None}
    )
    layers = layer_statistics(q)
    assert set(layers) == {"w"}
    np.testing.assert_allclose(layers["w"], [2.5, 3.0, 1.5, 2.0], rtol=1e-6)


def test_scanned_layers_have_a_path_each():
    mean = {"encoder": {"blocks": {"kernel": jnp.array([[1.0, 1.0], [2.0, 4.0]])}}}
    log_var = {"encoder": {"blocks": {"kernel": jnp.zeros((2, 2))}}}
    roles = {"encoder/blocks/kernel": Role("linear", stacked=True)}
    layers = layer_statistics(Posterior(mean, log_var), roles=roles)
    assert set(layers) == {"encoder/blocks/0/kernel", "encoder/blocks/1/kernel"}
    assert layers["encoder/blocks/1/kernel"].snr_mean == 3.0


def test_a_list_of_blocks_is_not_a_stack():
    q = posterior.init({"blocks": [{"weight": jnp.ones((2, 3))}, {"weight": jnp.ones(())}]})
    assert set(layer_statistics(q)) == {"blocks/0/weight", "blocks/1/weight"}


def test_one_line_says_what_is_bayesian():
    params = {
        "conv": {"kernel": jnp.ones((3, 3, 1, 4)), "bias": jnp.ones(4)},
        "norm": {"scale": jnp.ones(4), "bias": jnp.ones(4)},
        "head": {"kernel": jnp.ones((4, 300)), "bias": jnp.ones(300)},
    }
    expected = "Bayesian: {} of 1,548 weights; tensors: {} of 2 convolution, 2 of 2 linear, {} of 2 norm"
    assert selected(posterior.init(params, "linear_only")) == expected.format("1,500", 0, 0)
    assert selected(posterior.init(params)) == expected.format("1,548", 2, 2)
    roles = {"head/kernel": Role("embedding"), "head/bias": Role("embedding")}
    assert selected(posterior.point(params), roles=roles).endswith("0 of 2 norm, 0 of 2 embedding")
