"""Short training on the embedded images: the loss falls, no collapse, and sigma moves towards the prior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import byov_jax as byov
from byov_jax import images, networks
from byov_jax.data.sources import fashion_mnist

STEPS = 300
PRIORS = {
    "standard": byov.priors.standard(),
    "teacher_mean": byov.priors.teacher_mean(),
    "teacher_moments": byov.priors.teacher_moments(),
}


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("name", PRIORS)
def test_byov_trains_with_every_prior(name):
    student = networks.Student(
        networks.ViT(patch=7, width=32, depth=2, heads=2, pool="mean", positions="sincos"),
        networks.MLP((64, 32)),
        networks.MLP((64, 32)),
    )
    rate = byov.schedules.warmup_cosine(2e-3, 20, STEPS)
    method = byov.methods.byov(
        student,
        byov.optimizers.adamw(rate),
        variance=byov.variance.adam(lambda step: 20.0 * rate(step)),
        views=images.small_gray(),
        dataset_size=2000,
        beta=1.0,
        tau=byov.schedules.ema_cosine(0.97, STEPS),
        prior=PRIORS[name],
    )
    data = byov.Batch(fashion_mnist.load().train.image[:2000])
    progress = list(tiny.train(method, data, seed=0, steps=STEPS, batch_size=64))
    losses = [float(p.info.loss) for p in progress]
    spreads = [float(p.info.embedding_std) for p in progress]
    assert np.mean(losses[-30:]) < 0.7 * losses[0]
    assert min(spreads) > 0.5 * spreads[0]

    state = progress[-1].placed
    _, prior_log_var = PRIORS[name].moments(state.prior, state.teacher.params)
    change = mean_of(state.posterior.log_var) + 10.0
    assert np.sign(change) == np.sign(mean_of(prior_log_var) + 10.0)
    assert abs(change) > 0.05


def mean_of(tree) -> float:
    return float(np.mean(np.concatenate([np.ravel(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)])))
