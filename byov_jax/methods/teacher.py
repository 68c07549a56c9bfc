"""The teacher of BYOL: an EMA of the student's mean, without predictor and without gradient."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from byov_jax.bayes.moments import ema

PARTS = ("encoder", "projector")


class Teacher(NamedTuple):
    """The network that computes BYOL's targets.

    Attributes:
      params: `{"encoder": ..., "projector": ...}`, the EMA of the posterior mean.
      stats: the same parts of the other collections: the EMA of `batch_stats`, a copy of the others.
    """

    params: dict[str, Any]
    stats: dict[str, dict[str, Any]]


def init(mean: dict, stats: dict) -> Teacher:
    """Return a copy of the student, in separate buffers so that both can be donated."""
    teacher = Teacher(_select(mean), {name: _select(collection) for name, collection in stats.items()})
    return jax.tree.map(jnp.copy, teacher)


def none() -> Teacher:
    """Return the empty teacher of the supervised methods."""
    return Teacher({}, {})


def update(teacher: Teacher, mean: dict, stats: dict, tau) -> Teacher:
    """`teacher <- tau * teacher + (1 - tau) * student`, for the parts of the teacher."""
    return Teacher(
        params=ema(teacher.params, _select(mean, teacher.params), tau),
        stats={
            name: ema(part, _select(stats[name], part), tau) if name == "batch_stats" else part
            for name, part in teacher.stats.items()
        },
    )


def _select(tree: dict, names=PARTS) -> dict:
    return {name: tree[name] for name in names if name in tree}
