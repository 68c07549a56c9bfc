"""The data terms as functions of sampled weights: BYOL's cosine loss and the cross-entropy.

An objective is `(weights, stats, teacher, batch, image_keys, drop_path_key) -> (loss, Outcome)`. `weights` is
a pair of parameter trees, one for each view (the same tree twice unless each view has its own draw).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, UInt8

from byov_jax.methods.teacher import Teacher

Objective = Callable[..., tuple[Array, "Outcome"]]
AnyArray = Array | np.ndarray
ViewsFn = Callable[[Any, Any], tuple[Array, Array]]


class Batch(NamedTuple):
    """Images [batch, height, width, channels], uint8 or float in [0, 1], and optional labels [batch].

    Images cropped on the host are [batch, crops, height, width, channels], with one crop per view.
    """

    image: (
        UInt8[AnyArray, "batch *crops height width channels"]
        | Float[AnyArray, "batch *crops height width channels"]
    )
    label: Int[AnyArray, " batch"] | None = None


class Moments(NamedTuple):
    """First and second moment of each coordinate of the normalised embeddings of a batch."""

    mean: Float[Array, " features"]
    square: Float[Array, " features"]


class Monitors(NamedTuple):
    """Diagnostics of a data term, each a mean over the batch, so that micro-batches and devices average.

    Attributes:
      embedding: moments of the embeddings, from which `embedding_std` detects a collapse.
      cosine: mean cosine similarity of predictions and targets (BYOL and BYOV).
      accuracy: top-1 accuracy on the training batch (supervised methods).
    """

    embedding: Moments
    cosine: Float[Array, ""] | None = None
    accuracy: Float[Array, ""] | None = None


class Outcome(NamedTuple):
    """Auxiliary output of a data term: updated statistics, diagnostics, features of the first view."""

    stats: dict[str, Any]
    monitors: Monitors
    features: Float[Array, "batch features"]


def bootstrap(student, views: ViewsFn) -> Objective:
    """BYOL: the prediction for one view matches the teacher's projection of the other, symmetrised.

    `L = mean_i[(2 - 2 cos(p1, sg z2)) + (2 - 2 cos(p2, sg z1))]`, in [0, 8].
    """

    def target(teacher: Teacher, x):
        variables = {"params": teacher.params, **teacher.stats}
        (_, z), _ = student.apply(variables, x, train=True, mutable=["batch_stats"], method="project")
        return jax.lax.stop_gradient(z)

    def objective(weights, stats, teacher: Teacher, batch: Batch, image_keys, drop_path_key):
        x1, x2 = views(image_keys, batch.image)
        key1, key2 = jax.random.split(drop_path_key)
        taps1, stats1 = _train_mode(student, weights[0], stats, x1, key1)
        taps2, stats2 = _train_mode(student, weights[1], stats, x2, key2)
        z1, z2 = target(teacher, x1), target(teacher, x2)
        cosine = _cosine(taps1.predictor, z2) + _cosine(taps2.predictor, z1)
        loss = jnp.mean(4.0 - 2.0 * cosine)
        new_stats = jax.tree.map(lambda a, b: 0.5 * (a + b), stats1, stats2)
        monitors = Monitors(moments(taps1.projector), cosine=jnp.mean(cosine) / 2.0)
        return loss, Outcome(new_stats, monitors, taps1.encoder)

    return objective


def classification(classifier, views: ViewsFn) -> Objective:
    """Cross-entropy with the labels on the first view of each image."""

    def objective(weights, stats, teacher: Teacher, batch: Batch, image_keys, drop_path_key):
        if batch.label is None:
            raise ValueError("supervised methods need labels: pass Batch(image, label)")
        x, _ = views(image_keys, batch.image)
        output, new_stats = _train_mode(classifier, weights[0], stats, x, drop_path_key)
        loss = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(output.logits, batch.label))
        hits = jnp.equal(jnp.argmax(output.logits, axis=-1), batch.label)
        monitors = Monitors(moments(output.encoder), accuracy=jnp.mean(hits.astype(jnp.float32)))
        return loss, Outcome(new_stats, monitors, output.encoder)

    return objective


def moments(z: Float[Array, "batch features"]) -> Moments:
    """Return the moments of the embeddings scaled to unit length."""
    z = z / jnp.maximum(jnp.linalg.norm(z, axis=-1, keepdims=True), 1e-12)
    return Moments(jnp.mean(z, axis=0), jnp.mean(jnp.square(z), axis=0))


def embedding_std(embedding: Moments) -> Float[Array, ""]:
    """Collapse monitor: 1 for directions uniform on the sphere, 0 for a constant embedding.

    The mean standard deviation of the coordinates times the square root of the dimension.
    """
    variance = jnp.maximum(embedding.square - jnp.square(embedding.mean), 0.0)
    return jnp.mean(jnp.sqrt(variance)) * jnp.sqrt(embedding.mean.shape[-1])


def _cosine(p, z):
    return optax.cosine_similarity(p, z, epsilon=1e-12)


def _train_mode(module, weights, stats, x, drop_path_key):
    """Apply `module` in training mode; return its output and the updated collections."""
    output, updated = module.apply(
        {"params": weights, **stats},
        x,
        train=True,
        rngs={"drop_path": drop_path_key},
        mutable=["batch_stats"],
    )
    return output, {**stats, **updated}
