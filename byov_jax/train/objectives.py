"""The two data terms, as functions of drawn weights: BYOL's cosine loss and the cross-entropy.

`objective(weights, stats, teacher, batch, image_keys, drop_path_key, per_view) -> (loss, (stats, monitors))`.
Both augment on device; neither knows whether its weights were drawn or are a point estimate.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt8

from byov_jax.train.teacher import Teacher

Objective = Callable[..., tuple[Array, tuple[dict, "Monitors"]]]
ViewsFn = Callable[[Any, Any], tuple[Array, Array]]


class Batch(NamedTuple):
    """Images [batch, height, width, channels], uint8 or float in [0, 1], and their labels [batch] if any."""

    image: UInt8[Array, "batch height width channels"] | Float[Array, "batch height width channels"]
    label: Int[Array, "batch"] | None = None


class Monitors(NamedTuple):
    """What a data term shows of itself.

    Attributes:
      embedding_std: standard deviation over the batch of each coordinate of the normalised embedding, times
        the root of its dimension: 1 when embeddings spread over the whole sphere, 0 when they collapsed.
      cosine: mean cosine similarity of predictions and targets (BYOL and BYOV).
      accuracy: top-1 accuracy on the training batch (supervised methods).
    """

    embedding_std: Float[Array, ""]
    cosine: Float[Array, ""] | None = None
    accuracy: Float[Array, ""] | None = None


def bootstrap(student, views: ViewsFn) -> Objective:
    """BYOL: the prediction for one view must match the teacher's projection of the other, both ways round.

    `L = mean_i[(2 - 2 cos(p1, sg z2)) + (2 - 2 cos(p2, sg z1))]`, in [0, 8].
    """

    def objective(weights, stats, teacher: Teacher, batch: Batch, image_keys, drop_path_key, per_view: bool):
        x = jnp.stack(views(image_keys, batch.image))

        def student_of(weights, x, key):
            return _train_mode(student, weights, stats, x, key)

        def teacher_of(x):
            variables = {"params": teacher.params, **teacher.stats}
            (_, z), _ = student.apply(variables, x, train=True, mutable=["batch_stats"], method="project")
            return jax.lax.stop_gradient(z)

        draws = 0 if per_view else None
        taps, new_stats = jax.vmap(student_of, (draws, 0, 0))(weights, x, jax.random.split(drop_path_key, 2))
        z1, z2 = jax.vmap(teacher_of)(x)
        p1, p2 = taps.predictor
        cosine = _cosine(p1, z2) + _cosine(p2, z1)
        loss = jnp.mean(4.0 - 2.0 * cosine)
        new_stats = jax.tree.map(lambda stat: jnp.mean(stat, axis=0), new_stats)
        monitors = Monitors(embedding_std(taps.projector[0]), cosine=jnp.mean(cosine) / 2.0)
        return loss, (new_stats, monitors)

    return objective


def classification(classifier, views: ViewsFn) -> Objective:
    """Cross-entropy of the labels, on the first view of each image."""

    def objective(weights, stats, teacher: Teacher, batch: Batch, image_keys, drop_path_key, per_view: bool):
        if batch.label is None:
            raise ValueError("supervised methods need labels: pass Batch(image, label)")
        x, _ = views(image_keys, batch.image)
        output, new_stats = _train_mode(classifier, weights, stats, x, drop_path_key)
        loss = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(output.logits, batch.label))
        hits = jnp.equal(jnp.argmax(output.logits, axis=-1), batch.label)
        monitors = Monitors(embedding_std(output.encoder), accuracy=jnp.mean(hits.astype(jnp.float32)))
        return loss, (new_stats, monitors)

    return objective


def embedding_std(z: Float[Array, "batch features"]) -> Float[Array, ""]:
    """Collapse monitor: 1 for directions spread over the sphere, 0 for a constant embedding."""
    z = z / jnp.maximum(jnp.linalg.norm(z, axis=-1, keepdims=True), 1e-12)
    return jnp.mean(jnp.std(z, axis=0)) * jnp.sqrt(z.shape[-1])


def _cosine(p, z):
    return optax.cosine_similarity(p, z, epsilon=1e-12)


def _train_mode(module, weights, stats, x, drop_path_key):
    """Applies `module` with batch statistics and drop path on; returns its output and the new collections."""
    output, updated = module.apply(
        {"params": weights, **stats},
        x,
        train=True,
        rngs={"drop_path": drop_path_key},
        mutable=["batch_stats"],
    )
    return output, {**stats, **updated}
