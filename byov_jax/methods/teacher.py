"""The teacher: a moving average of the student's mean, deterministic, without predictor or gradient."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from byov_jax.bayes.moments import ema

PARTS = ("encoder", "projector")


class Teacher(NamedTuple):
    """The weights that give BYOL its targets.

    Attributes:
      params: `{"encoder": ..., "projector": ...}`, the EMA of the mean; log-variances never enter it.
      stats: the same parts of the other collections: the EMA of `batch_stats`, a copy of anything else.
    """

    params: dict[str, Any]
    stats: dict[str, dict[str, Any]]


def init(mean: dict, stats: dict) -> Teacher:
    """A teacher equal to the student, in buffers of its own (so that both can be donated)."""
    teacher = Teacher(_parts(mean), {name: _parts(collection) for name, collection in stats.items()})
    return jax.tree.map(jnp.copy, teacher)


def none() -> Teacher:
    """The teacher of a method that has none."""
    return Teacher({}, {})


def update(teacher: Teacher, mean: dict, stats: dict, tau) -> Teacher:
    """`teacher <- tau * teacher + (1 - tau) * student`, in the parts that the teacher has."""
    return Teacher(
        params=ema(teacher.params, _like(teacher.params, mean), tau),
        stats={
            name: ema(part, _like(part, stats[name]), tau) if name == "batch_stats" else part
            for name, part in teacher.stats.items()
        },
    )


def _parts(tree: dict) -> dict:
    return {name: tree[name] for name in PARTS if name in tree}


def _like(parts: dict, tree: dict) -> dict:
    return {name: tree[name] for name in parts}
