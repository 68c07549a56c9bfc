"""How well a training goes: accuracy on held-out images, and signs of trouble."""

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
from byov_jax.methods.step import State
from byov_jax.networks import Classifier

BANK = 2000
"""At most so many training images are their possible neighbours."""

NEIGHBOURS = 20
COLLAPSED = 0.05
"""An `embedding_std` below this is a collapse: all images have all but the same embedding."""


class Diagnosis(NamedTuple):
    """What is wrong with a training, and what to try."""

    kind: str
    text: str


def diagnose(line: dict[str, Any]) -> Diagnosis | None:
    """What a line of metrics.jsonl gives reason to warn of."""
    spread = line["embedding_std"]
    if spread < COLLAPSED:
        return Diagnosis(
            "collapsed",
            f"embedding_std is {spread:.3f}: the embeddings have collapsed, all images look alike to the "
            "network. Try a lower learning rate, a longer warm-up, batch norm in the heads, or a larger "
            "batch.",
        )
    return None


def skip_reason(line: dict[str, Any]) -> str:
    """Why the last step that was skipped was."""
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
    """Accuracy on held-out images: `probe`, of the online probe or the network's own head, and `knn`.

    Nothing without labels; NaN for a network that diverged.

    Args:
      network: a `networks.Student` or a `networks.Classifier`.
      views: whose mean and std normalise the images.
      state: the weights and the online probe.
      data: with the held-out images.
      mesh: the devices among which they are divided; every process must take part.
      images: how many to look at, at most, the same ones every time; 0 for all.
    """
    if isinstance(data, Unlabelled):
        return {}
    chosen, bank = _some(data.test, images), _some(data.train, BANK)
    own_head = isinstance(network, Classifier)
    apply = forward.all_outputs(network, views) if own_head else forward.at_tap(network, views, "encoder")
    q = forward.variables_of(state.posterior, state.stats, ("encoder", "head"))
    watch = _watch(apply, own_head)
    variables = {"network": q.mean, "probe": state.online.params}
    queries, scores = inference.apply_sharded(mesh, watch, variables, data.test.image, chosen)
    if not np.isfinite(queries).all():
        return {"probe": math.nan, "knn": math.nan}
    neighbours, _ = inference.apply_sharded(mesh, watch, variables, data.train.image, bank)
    k = min(NEIGHBOURS, len(bank))
    votes = knn.vote(
        knn.nearest(neighbours, queries, k=k), data.train.label[bank], classes=len(data.classes), k=k
    )
    return {
        name: float(np.mean(np.argmax(np.asarray(values), axis=1) == data.test.label[chosen]))
        for name, values in (("probe", scores), ("knn", votes))
    }


@lru_cache(maxsize=16)
def _watch(apply: predictive.Apply, own_head: bool) -> predictive.Apply:
    """Features, and the scores of the classes by the network's own head or by the online probe."""

    def watch(variables: dict[str, Any], images: Any) -> tuple[Any, Any]:
        found = apply(variables["network"], images)
        if own_head:
            return found.encoder, found.logits
        return found, online_probe.logits(variables["probe"], found)

    return watch


def _some(images: Images, count: int) -> np.ndarray:
    """The same few images at every time, spread over all of them; 0 for all."""
    size = len(images.label)
    return np.linspace(0, size - 1, min(count or size, size)).astype(int)
