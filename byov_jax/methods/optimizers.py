"""Optimizers of the means: AdamW and LARS, with decay of kernels and a learning rate that can be read.

Any other optax transformation over the parameters serves as well: it sees a tree like those of the network,
never a log-variance.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from byov_jax import ranges
from byov_jax.bayes import roles
from byov_jax.bayes.paths import path_of
from byov_jax.methods.schedules import Schedule


def adamw(
    learning_rate: float | jax.Array | Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> optax.GradientTransformation:
    """AdamW, the optimizer of the ViT recipes.

    Args:
      learning_rate: a number or a schedule.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: decay of kernels, Bayesian or not; norms, biases and embeddings have none. The KL to a
        Gaussian prior is a decay too (`Info.implied_l2`), usually a much smaller one.
      clip_norm: maximum global norm of the means' gradient, None for no clipping.
    """
    ranges.check(learning_rate=learning_rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)

    def build(learning_rate):
        return optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay, mask=kernels)

    return _clipped(optax.inject_hyperparams(build)(learning_rate), clip_norm)


def lars(
    learning_rate: float | jax.Array | Schedule,
    *,
    momentum: float = 0.9,
    trust_coefficient: float = 1e-3,
    lr_after_momentum: bool = False,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> optax.GradientTransformation:
    """LARS, the optimizer of BYOL's ResNet-50: layer-wise trust ratios for kernels, plain momentum elsewhere.

    Args are those of `adamw`, and:
      momentum: heavy-ball momentum.
      trust_coefficient: `eta` in `eta * |w| / |g|`.
      lr_after_momentum: multiply the momentum by the learning rate, as DeepMind's BYOL does, instead of what
        goes into it. The two differ while the learning rate changes.
    """
    ranges.check(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        momentum=momentum,
        trust_coefficient=trust_coefficient,
    )

    def build(learning_rate):
        last = [optax.scale_by_learning_rate(learning_rate), optax.trace(decay=momentum)]
        return optax.chain(
            optax.add_decayed_weights(weight_decay, kernels),
            optax.masked(optax.scale_by_trust_ratio(trust_coefficient=trust_coefficient), kernels),
            *(reversed(last) if lr_after_momentum else last),
        )

    return _clipped(optax.inject_hyperparams(build)(learning_rate), clip_norm)


def kernels(params):
    """Return a mask for decay and trust ratios: True at the kernels of linear and convolutional layers.

    Masks of optax transformations may be such functions: `optax.adamw(1e-3, mask=optimizers.kernels)`.
    """
    found = roles.infer(params)
    return jax.tree_util.tree_map_with_path(
        lambda keys, _: roles.is_kernel(path_of(keys), found[path_of(keys)]), params
    )


def bayesian(
    means: optax.GradientTransformation, log_vars: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Combine two optimizers for a network with `Bayesian` modules, in a training loop of your own.

    Weight decay and trust ratios of one optimizer for all would pull log_var towards 0, that is sigma to 1.

    Args:
      means: for the means, and for parameters without a posterior.
      log_vars: for the log-variances.
    """

    def labels(node):
        if isinstance(node, Mapping) and set(node) == {"mean", "log_var"}:
            return {name: jax.tree.map(lambda _, name=name: name, node[name]) for name in node}
        if isinstance(node, Mapping):
            return {name: labels(child) for name, child in node.items()}
        return jax.tree.map(lambda _: "mean", node)

    return optax.partition({"mean": means, "log_var": log_vars}, labels)


def learning_rate(state: optax.OptState) -> jax.Array | None:
    """Return the learning rate of the last update from the optimizer's state, None if it is not there.

    It is where `optax.inject_hyperparams` put it, as in `adamw` and `lars`; the first one, if there are many.
    """
    found = optax.tree_utils.tree_get_all_with_path(
        state, "learning_rate", filtering=lambda path, value: hasattr(value, "dtype")
    )
    return jnp.asarray(found[0][1]) if found else None


def _clipped(optimizer: optax.GradientTransformation, clip_norm: float | None):
    if clip_norm is None:
        return optimizer
    ranges.check(clip_norm=clip_norm)
    return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)
