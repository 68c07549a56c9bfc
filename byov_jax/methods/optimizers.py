"""Optimizers of a posterior: AdamW and LARS, with decay for kernels only and a learning rate for log_var.

Each returns a plain optax transformation over a `Posterior`. The current learning rate is part of its state,
where `learning_rate(state)` finds it.
"""

import warnings

import jax
import optax

from byov_jax.bayes.posterior import Posterior
from byov_jax.bayes.select import is_kernel, path_of
from byov_jax.methods.schedules import Schedule


def adamw(
    learning_rate: float | Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    bayesian_weight_decay: float = 0.0,
    log_var_multiplier: float = 1.0,
    clip_norm: float | None = None,
) -> optax.GradientTransformation:
    """AdamW, the optimizer of the ViT recipes.

    Args:
      learning_rate: a number or a schedule.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: decay of kernels that are point estimates; norms, biases and embeddings have none.
      bayesian_weight_decay: decay of the means of Bayesian kernels. Leave it at 0: the KL regularises them
        already, and decay on top of it is a second prior that the KL does not know of.
      log_var_multiplier: learning rate of log_var relative to the mean's. Adam moves a parameter by about
        the learning rate per step, so in a run of a few hundred steps sigma hardly moves at 1 (the paper's
        value, for hundreds of thousands of steps); 10 to 30 suits those.
      clip_norm: largest global gradient norm, None for no clipping.
    """
    decay = _decay(weight_decay, bayesian_weight_decay)

    def build(learning_rate):
        return optax.chain(
            optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
            decay,
            optax.scale_by_learning_rate(learning_rate),
        )

    return _finish(build, learning_rate, log_var_multiplier, clip_norm)


def lars(
    learning_rate: float | Schedule,
    *,
    momentum: float = 0.9,
    trust_coefficient: float = 1e-3,
    weight_decay: float = 0.0,
    bayesian_weight_decay: float = 0.0,
    log_var_multiplier: float = 1.0,
    clip_norm: float | None = None,
) -> optax.GradientTransformation:
    """LARS, the optimizer of BYOL's ResNet-50: layer-wise trust ratios for kernels, plain momentum elsewhere.

    Args are those of `adamw`, and:
      momentum: of the heavy ball.
      trust_coefficient: `eta` in `eta * |w| / |g|`.
    """
    decay = _decay(weight_decay, bayesian_weight_decay)

    def build(learning_rate):
        return optax.chain(
            decay,
            optax.masked(optax.scale_by_trust_ratio(trust_coefficient=trust_coefficient), _kernels),
            optax.scale_by_learning_rate(learning_rate),
            optax.trace(decay=momentum),
        )

    return _finish(build, learning_rate, log_var_multiplier, clip_norm)


def learning_rate(state: optax.OptState):
    """The learning rate of the last update, from the state of `adamw`, `lars` or any injected optimizer."""
    return optax.tree_utils.tree_get(
        state, "learning_rate", default=float("nan"), filtering=lambda path, value: hasattr(value, "dtype")
    )


def _finish(build, learning_rate, log_var_multiplier, clip_norm) -> optax.GradientTransformation:
    if not log_var_multiplier >= 0.0:
        raise ValueError(f"log_var_multiplier={log_var_multiplier!r} must not be negative")
    if clip_norm is not None and not clip_norm > 0.0:
        raise ValueError(f"clip_norm={clip_norm!r} must be positive, or None for no clipping")
    clip = optax.clip_by_global_norm(clip_norm) if clip_norm is not None else optax.identity()
    injected = optax.inject_hyperparams(build)(learning_rate=learning_rate)
    return optax.chain(clip, injected, _scale_log_var(log_var_multiplier))


def _decay(weight_decay: float, bayesian_weight_decay: float) -> optax.GradientTransformation:
    for name, value in (("weight_decay", weight_decay), ("bayesian_weight_decay", bayesian_weight_decay)):
        if not value >= 0.0:
            raise ValueError(f"{name}={value!r} must not be negative")
    if bayesian_weight_decay:
        warnings.warn(
            f"bayesian_weight_decay={bayesian_weight_decay}: the KL already regularises Bayesian parameters; "
            "decay on top of it is a second prior, and the reported KL is no longer the whole of it",
            stacklevel=3,
        )
    return optax.chain(
        optax.add_decayed_weights(weight_decay, lambda q: _kernels(q, bayesian=False)),
        optax.add_decayed_weights(bayesian_weight_decay, lambda q: _kernels(q, bayesian=True)),
    )


def _kernels(q: Posterior, bayesian: bool | None = None) -> Posterior:
    """True at the means of kernels (only the Bayesian ones, or only the others), else False."""

    def chosen(keys, leaf, log_var) -> bool:
        return is_kernel(path_of(keys)) and bayesian in (None, log_var is not None)

    return Posterior(
        jax.tree_util.tree_map_with_path(chosen, q.mean, q.log_var),
        jax.tree.map(lambda _: False, q.log_var),
    )


def _scale_log_var(multiplier: float) -> optax.GradientTransformation:
    return optax.stateless(
        lambda updates, params: updates._replace(
            log_var=jax.tree.map(lambda update: multiplier * update, updates.log_var)
        )
    )
