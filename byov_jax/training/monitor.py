"""Monitor a training: accuracy on held-out images, and signs of collapse."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from byov_jax.data.dataset import Dataset, Images, Unlabelled
from byov_jax.distributed import inference
from byov_jax.evaluation import forward, knn, predictive
from byov_jax.images.views import Views
from byov_jax.methods import guard, online_probe
from byov_jax.methods.state import State
from byov_jax.networks import Classifier

BANK = 2000
"""At most this many training images are candidates for nearest neighbours."""

NEIGHBOURS = 20
COLLAPSED = 0.05
"""An `embedding_std` below this is a collapse: all images have nearly the same embedding."""


OUTWEIGHED = 3.0
"""A weighted KL above this multiple of the data term leaves little of the data, if it has grown."""

GROWN = 10.0
"""Nats per weight that a KL comes to by growing: at the usual start, N(0, I) costs 4.5, and hardly pulls."""


class Diagnosis(NamedTuple):
    """What is wrong with a training, and what to try."""

    kind: str
    text: str


def diagnose(line: dict[str, Any]) -> Diagnosis | None:
    """Return what a line of metrics.jsonl gives reason to warn of, None for nothing."""
    std = line.get("embedding_std")
    if std is not None and std < COLLAPSED:
        return Diagnosis(
            "collapsed",
            f"embedding_std is {std:.3f}: the embeddings have collapsed, all images get nearly "
            "the same one. Try a lower learning rate, a longer warm-up, batch norm in the heads, or a larger "
            "batch.",
        )
    if line.get("kl_scaled", 0.0) > OUTWEIGHED * line["loss"] and line["kl_per_weight"] > GROWN:
        return Diagnosis(
            "kl",
            f"the KL has grown to {line['kl_per_weight']:.3g} nats per weight, and weighted, "
            f"{line['kl_scaled']:.3g}, outweighs the loss of {line['loss']:.3g}: the data hardly count. Try "
            "a smaller beta_end, another kl_norm, or, for prior=teacher_moments, whose variance shrinks as "
            "the means stop moving, prior=teacher_mean.",
        )
    return None


def skip_reason(line: dict[str, Any]) -> str:
    """Say why the last skipped step was skipped."""
    reason = guard.REASONS[line["skipped_for"]]
    return reason if reason.startswith("a ") else f"{reason} was not finite"


def held_out(
    network: Any,
    views: Views,
    state: State,
    data: Dataset | Unlabelled,
    mesh: Mesh,
    *,
    images: int = 0,
) -> dict[str, float]:
    """Return the accuracy on held-out images: `probe`, of the online probe or the network's head, and `knn`.

    Empty without labels; NaN for a network that diverged.

    Args:
      network: a `networks.Student` or a `networks.Classifier`.
      views: whose mean and std normalise the images.
      state: the weights and the online probe.
      data: the test split is held out, the training split holds the neighbours.
      mesh: the devices that share the images; every process must take part.
      images: use at most this many, the same ones every time; 0 for all.
    """
    if isinstance(data, Unlabelled):
        return {}
    test, bank = _rows(data.test, images), _rows(data.train, BANK)
    own_head = isinstance(network, Classifier)
    apply = forward.outputs(network, views) if own_head else forward.features(network, views, "encoder")
    q = forward.select_variables(state.posterior, state.stats, ("encoder", "head"))
    outputs = _outputs(apply, own_head)
    variables = {"network": q.mean, "probe": state.online.params}
    queries, scores = inference.apply_sharded(mesh, outputs, variables, data.test.image, test)
    if not np.isfinite(queries).all():
        return {"probe": math.nan, "knn": math.nan}
    neighbours, _ = inference.apply_sharded(mesh, outputs, variables, data.train.image, bank)
    k = min(NEIGHBOURS, len(bank))
    votes = knn.vote(
        knn.nearest(neighbours, queries, k=k), data.train.label[bank], classes=len(data.classes), k=k
    )
    return {
        name: float(np.mean(np.argmax(np.asarray(values), axis=1) == data.test.label[test]))
        for name, values in (("probe", scores), ("knn", votes))
    }


@lru_cache(maxsize=16)
def _outputs(apply: predictive.Apply, own_head: bool) -> predictive.Apply:
    """Return a function to features and logits, of the network's head or of the online probe."""

    def outputs(variables: dict[str, Any], images: Any) -> tuple[Any, Any]:
        result = apply(variables["network"], images)
        if own_head:
            return result.encoder, result.logits
        return result, online_probe.logits(variables["probe"], result)

    return outputs


def _rows(images: Images, count: int) -> np.ndarray:
    """Choose at most `count` evenly spaced images, 0 for all."""
    size = len(images.label)
    return np.linspace(0, size - 1, min(count or size, size)).astype(int)
