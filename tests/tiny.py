"""A small student, classifier, views and batch that compile quickly, for tests of training."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import byov_jax as byov
from byov_jax import distributed, images, networks
from byov_jax.training import feed, loop

REAL_VIEWS = images.small_gray(size=8)


def exposures(keys, image):
    """Two random exposures of each image, as views that compile quickly."""
    exposure = jax.vmap(lambda key: jax.random.uniform(key, (2, 1, 1, 1), minval=0.2))(keys)
    x = image.astype(jnp.float32) / 255.0
    return x * exposure[:, 0], jnp.square(x) * exposure[:, 1]


class Encoder(nn.Module):
    """One dense layer on the pixels."""

    @nn.compact
    def __call__(self, x, *, train=False):
        return nn.relu(nn.Dense(8)(x.reshape(x.shape[0], -1)))


def vit(**fields):
    small = {"patch": 4, "width": 8, "depth": 1, "heads": 2, "pool": "mean", "positions": "sincos"}
    return networks.ViT(**(small | fields))


def student(encoder=None, norm="batch", axis_name=None):
    heads = (networks.MLP((8, 8), norm=norm, axis_name=axis_name) for _ in range(2))
    return networks.Student(encoder or Encoder(), *heads)


def classifier():
    return networks.Classifier(Encoder(), classes=3)


def batch(size=16, seed=0):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (size, 8, 8, 1), np.uint8)
    return byov.Batch(jnp.asarray(image), jnp.asarray(rng.integers(0, 3, size), jnp.int32))


def byov_method(optimizer=None, *, net=None, **settings):
    defaults = {"views": exposures, "dataset_size": 64, "beta": 1.0, "tau": 0.9}
    return byov.methods.byov(
        net or student(), optimizer or byov.optimizers.adamw(1e-3), **(defaults | settings)
    )


def byol_method(optimizer=None, *, net=None, **settings):
    defaults = {"views": exposures, "tau": 0.9}
    return byov.methods.byol(
        net or student(), optimizer or byov.optimizers.adamw(1e-3), **(defaults | settings)
    )


def train(method, data, *, seed, steps, batch_size, state=None, first=0, **others):
    """Run the training loop on a data set in memory, on one device."""
    example = jax.tree.map(lambda x: x[:batch_size], data)
    runner = distributed.build(lambda layout: method, example, mode="plain")
    keys = loop.keys(seed)
    batches = feed.from_memory(runner, data, seed=seed, batch_size=batch_size, first=first, steps=steps)
    placed = runner.init(keys.init) if state is None else runner.put_state(state)
    return loop.run_steps(runner, placed, batches, keys.steps, first=first, **others)
