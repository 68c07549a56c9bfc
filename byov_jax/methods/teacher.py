"""The teacher of BYOL: an EMA of the student's mean, without predictor and without gradient."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from byov_jax.bayes.moments import ema


class Teacher(NamedTuple):
    """The network that computes BYOL's targets.

    Attributes:
      params: the EMA of the posterior mean: of its parts `{"encoder": ..., "projector": ...}` for a student.
      stats: the same parts of the other collections: its own `batch_stats` (the EMA of the student's if the
        objective does not tell), a copy of the others.
    """

    params: dict[str, Any]
    stats: dict[str, dict[str, Any]]


def init(network: Any, mean: dict, stats: dict) -> Teacher:
    """Return a copy of a network's parts, in separate buffers so that both can be donated.

    A network names the parts that its teacher has in `teacher_parts`; without, the teacher has them all.
    """
    parts = getattr(network, "teacher_parts", None) or mean
    teacher = Teacher(
        _select(mean, parts), {name: _select(collection, parts) for name, collection in stats.items()}
    )
    return jax.tree.map(jnp.copy, teacher)


def none() -> Teacher:
    """Return the empty teacher of the methods without one."""
    return Teacher({}, {})


def update(teacher: Teacher, mean: dict, stats: dict, tau, own: dict | None = None) -> Teacher:
    """`teacher <- tau * teacher + (1 - tau) * student`, for the parts of the teacher.

    Args:
      teacher: the teacher before the step.
      mean: the student's posterior mean.
      stats: the student's other collections.
      tau: the momentum.
      own: the teacher's collections after its forward passes, whose `batch_stats` it takes; without, they are
        an EMA of the student's.
    """

    def update_stats(name: str, old: dict) -> dict:
        new = _select(stats[name], old)
        if name != "batch_stats":
            return new
        return ema(old, new, tau) if own is None else own[name]

    return Teacher(
        params=ema(teacher.params, _select(mean, teacher.params), tau),
        stats={name: update_stats(name, part) for name, part in teacher.stats.items()},
    )


def _select(tree: dict, names: Iterable[str]) -> dict:
    return {name: tree[name] for name in names if name in tree}
