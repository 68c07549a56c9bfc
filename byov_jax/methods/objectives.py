"""Objectives: functions of drawn weights. BYOL's cosine loss and the cross-entropy are two of them.

An objective is `(weights, inputs) -> (loss, Outcome)`. `weights` is one parameter tree for each view, the
same tree every time unless each view has its own draw; `inputs` is all else that a step knows. It may compute
anything from them that JAX differentiates. `forward` applies a network to all views, as most objectives do:

    def invariance(network):
        def objective(weights, inputs):
            (a, b), stats = forward(network, weights, inputs)
            return jnp.mean(jnp.square(a - b)), Outcome(stats, embedding=a)

        return objective
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, UInt8

from byov_jax.methods.teacher import Teacher
from byov_jax.networks.call import call

AnyArray = Array | np.ndarray
ViewsFn = Callable[[Any, Any], tuple[Array, ...]]
"""`(image_keys, images) -> (x1, x2, ...)`, such as an `images.Views`: any number of views, of any sizes."""


class Batch(NamedTuple):
    """Images [batch, height, width, channels], uint8 or float in [0, 1], and optional labels [batch].

    Images cropped on the host are [batch, crops, height, width, channels], with one crop per view.
    """

    image: (
        UInt8[AnyArray, "batch *crops height width channels"]
        | Float[AnyArray, "batch *crops height width channels"]
    )
    label: Int[AnyArray, " batch"] | None = None


class Inputs(NamedTuple):
    """What an objective is given besides the weights.

    Attributes:
      views: the augmented views, each [batch, height, width, channels].
      label: [batch], or None.
      stats: the network's other collections (`batch_stats`, ...), `{}` if it has none.
      teacher: the EMA teacher; empty for methods without one.
      key: for whatever else is random, such as dropout.
    """

    views: tuple[Array, ...]
    label: Int[AnyArray, " batch"] | None
    stats: dict[str, Any]
    teacher: Teacher
    key: Array


class Outcome(NamedTuple):
    """What an objective returns besides its loss.

    Attributes:
      stats: the updated collections.
      embedding: embeddings [batch, features], whose spread is monitored for a collapse; None for no monitor.
      features: features [batch, features] that the online probe classifies; None for no probe.
      metrics: scalars to log by name, each a mean over the batch, so that micro-batches and devices average.
      teacher_stats: the teacher's updated collections, from `targets`; None averages the student's for it.
    """

    stats: dict[str, Any]
    embedding: Float[Array, "batch features"] | None = None
    features: Float[Array, "batch features"] | None = None
    metrics: dict[str, Array] = {}  # noqa: RUF012
    teacher_stats: dict[str, Any] | None = None


Objective = Callable[[tuple[Any, ...], Inputs], tuple[Array, Outcome]]


def bootstrap(student: Any) -> Objective:
    """BYOL: the prediction for one view matches the teacher's projection of the other, symmetrised.

    `L = mean_i[(2 - 2 cos(p1, sg z2)) + (2 - 2 cos(p2, sg z1))]`, in [0, 8]. With further views (multi-crop;
    Caron et al., 2020) the first two are the teacher's targets, and each target's term is the mean over the
    predictions for all other views.
    """

    def objective(weights: tuple[Any, ...], inputs: Inputs) -> tuple[Array, Outcome]:
        taps, stats = forward(student, weights, inputs)
        predictions = [tap.predictor for tap in taps]
        projections, teacher_stats = targets(student, inputs, inputs.views[:2])
        cosine = jnp.zeros(())
        for index, z in enumerate(projections):
            others = [cosine_similarity(p, z) for i, p in enumerate(predictions) if i != index]
            cosine = cosine + sum(others) / len(others)
        metrics = {"cosine": jnp.mean(cosine) / 2.0}
        outcome = Outcome(stats, taps[0].projector, taps[0].encoder, metrics, teacher_stats)
        return jnp.mean(4.0 - 2.0 * cosine), outcome

    return objective


def classification(classifier: Any) -> Objective:
    """Cross-entropy with the labels on the first view of each image."""

    def objective(weights: tuple[Any, ...], inputs: Inputs) -> tuple[Array, Outcome]:
        if inputs.label is None:
            raise ValueError("supervised methods need labels: pass Batch(image, label)")
        (output,), stats = forward(classifier, weights, inputs._replace(views=inputs.views[:1]))
        loss = jnp.mean(_cross_entropy(output.logits, inputs.label))
        hits = jnp.equal(jnp.argmax(output.logits, axis=-1), inputs.label)
        metrics = {"accuracy": jnp.mean(hits.astype(jnp.float32))}
        return loss, Outcome(stats, output.encoder, output.encoder, metrics)

    return objective


def forward(network: Any, weights: tuple[Any, ...], inputs: Inputs) -> tuple[list[Any], dict[str, Any]]:
    """Apply a network in training mode to every view.

    Every view is given the same statistics; the updated ones are averaged.

    Args:
      network: a Flax module.
      weights: the weights for each view.
      inputs: those of the objective.

    Returns:
      The outputs for each view, and the updated collections.
    """
    keys = jax.random.split(inputs.key, len(inputs.views))
    apply = _traced_once(network, inputs.views)
    results = [
        apply({"params": params, **inputs.stats}, x, streams(key, drop_path=True))
        for params, x, key in zip(weights, inputs.views, keys, strict=False)
    ]
    outputs, updated = zip(*results, strict=True)
    return list(outputs), mean_stats(updated)


def target(network: Any, inputs: Inputs, x: Array, method: str = "project") -> Array:
    """Return the teacher's output for one view, as in `targets`."""
    (output,), _ = targets(network, inputs, (x,), method)
    return output


def targets(
    network: Any, inputs: Inputs, views: tuple[Array, ...], method: str = "project"
) -> tuple[list[Array], dict[str, Any]]:
    """Return the teacher's output for each view, the last one of `network.project`, without gradient.

    The teacher is in training mode, with the statistics of the batch, but without stochastic depth.

    Returns:
      The outputs, and the teacher's updated collections, averaged over the views: `Outcome.teacher_stats`.
    """
    variables = {"params": inputs.teacher.params, **inputs.teacher.stats}
    rngs = streams(inputs.key, drop_path=False)
    apply = _traced_once(network, views, method)
    results = [apply(variables, x, rngs) for x in views]
    outputs, updated = jax.lax.stop_gradient(tuple(zip(*results, strict=True)))
    return [x[-1] if isinstance(x, tuple) else x for x in outputs], mean_stats(updated)


def _cross_entropy(
    logits: Float[Array, "batch classes"], label: Int[AnyArray, " batch"]
) -> Float[Array, " batch"]:
    """Return the cross-entropy of each row, NaN where the label is not a class."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    return jnp.where(label < 0, jnp.nan, loss)  # optax counts negative labels from the last class


def cosine_similarity(p: Float[Array, "batch features"], z: Float[Array, "batch features"]) -> Array:
    """Return the cosine of each pair of rows, [batch]."""
    return optax.cosine_similarity(p, z, epsilon=1e-12)


def streams(key: Array, *, drop_path: bool) -> dict[str, Array]:
    """Return the rng streams of a forward pass; a stream of any other name derives from "params"."""
    named = {"dropout": jax.random.fold_in(key, 1), "params": jax.random.fold_in(key, 2)}
    return named | ({"drop_path": key} if drop_path else {})


def mean_stats(updated: Any) -> Any:
    """Average collections: their floating-point leaves; of others, such as counters, the last is taken."""

    def merge(*leaves: Array) -> Array:
        if not jnp.issubdtype(leaves[0].dtype, jnp.floating):
            return leaves[-1]
        return sum(leaves[1:], start=leaves[0]) / len(leaves)

    return jax.tree.map(merge, *updated)


class Moments(NamedTuple):
    """First and second moment of each coordinate of the normalised embeddings of a batch."""

    mean: Float[Array, " features"]
    square: Float[Array, " features"]


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


def _traced_once(network: Any, views: tuple[Array, ...], method: str = "__call__") -> Callable:
    """Return `_apply` for a network, which is traced and differentiated once for all views of one shape."""
    apply = partial(_apply, network, method=method)
    # Outside jit it would be compiled at every call.
    return jax.jit(apply) if isinstance(views[0], jax.core.Tracer) else apply


def _apply(
    network: Any, variables: dict[str, Any], x: Array, rngs: dict[str, Array], method: str = "__call__"
):
    """Return the output in training mode and the collections that the network has, updated."""
    collections = {name: tree for name, tree in variables.items() if name != "params"}

    def train(module, x):
        return call(module, x, train=True, method=method)

    output, updated = network.apply(variables, x, rngs=rngs, mutable=list(collections), method=train)
    return output, {**collections, **updated}
