"""Optimizers of a posterior: AdamW and LARS, with weight decay on kernels and a learning rate for log_var.

Each is an optax transformation over a `Posterior` that injects its hyper-parameters: `learning_rate(state)`
reads the current learning rate from its state.
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
      bayesian_weight_decay: decay of the means of Bayesian kernels. Leave it at 0: the KL already regularises
        them, and decay is a second prior that the reported KL does not include.
      log_var_multiplier: learning rate of log_var relative to the mean's. Adam moves a parameter by at most
        about the learning rate per step: 1 (the paper's value) suits hundreds of thousands of steps, 10 to 30
        a few hundred.
      clip_norm: maximum global gradient norm, None for no clipping.
    """
    decay = _weight_decay(weight_decay, bayesian_weight_decay)

    def build(learning_rate):
        return optax.chain(
            optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
            decay,
            optax.scale_by_learning_rate(learning_rate),
        )

    return _with_log_var_rate(build, learning_rate, log_var_multiplier, clip_norm)


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
      momentum: heavy-ball momentum.
      trust_coefficient: `eta` in `eta * |w| / |g|`.
    """
    decay = _weight_decay(weight_decay, bayesian_weight_decay)

    def build(learning_rate):
        return optax.chain(
            decay,
            optax.masked(optax.scale_by_trust_ratio(trust_coefficient=trust_coefficient), _kernels),
            optax.scale_by_learning_rate(learning_rate),
            optax.trace(decay=momentum),
        )

    return _with_log_var_rate(build, learning_rate, log_var_multiplier, clip_norm)


def learning_rate(state: optax.OptState):
    """Return the learning rate of the last update from the optimizer's state; NaN if it injects none."""
    return optax.tree_utils.tree_get(
        state, "learning_rate", default=float("nan"), filtering=lambda path, value: hasattr(value, "dtype")
    )


def _with_log_var_rate(build, learning_rate, log_var_multiplier, clip_norm) -> optax.GradientTransformation:
    if not log_var_multiplier >= 0.0:
        raise ValueError(f"log_var_multiplier={log_var_multiplier!r} must not be negative")
    if clip_norm is not None and not clip_norm > 0.0:
        raise ValueError(f"clip_norm={clip_norm!r} must be positive, or None for no clipping")
    clip = optax.clip_by_global_norm(clip_norm) if clip_norm is not None else optax.identity()
    injected = optax.inject_hyperparams(build)(learning_rate=learning_rate)
    return optax.chain(clip, injected, _scale_log_var(log_var_multiplier))


def _weight_decay(weight_decay: float, bayesian_weight_decay: float) -> optax.GradientTransformation:
    for name, value in (("weight_decay", weight_decay), ("bayesian_weight_decay", bayesian_weight_decay)):
        if not value >= 0.0:
            raise ValueError(f"{name}={value!r} must not be negative")
    if bayesian_weight_decay:
        warnings.warn(
            f"bayesian_weight_decay={bayesian_weight_decay}: the KL already regularises Bayesian parameters; "
            "decay adds a second prior that the reported KL does not include",
            stacklevel=3,
        )
    return optax.chain(
        optax.add_decayed_weights(weight_decay, lambda q: _kernels(q, bayesian=False)),
        optax.add_decayed_weights(bayesian_weight_decay, lambda q: _kernels(q, bayesian=True)),
    )


def _kernels(q: Posterior, bayesian: bool | None = None) -> Posterior:
    """Mask that is True at the means of kernels: all of them, the Bayesian ones, or the point estimates."""

    def selected(keys, leaf, log_var) -> bool:
        return is_kernel(path_of(keys)) and bayesian in (None, log_var is not None)

    return Posterior(
        jax.tree_util.tree_map_with_path(selected, q.mean, q.log_var),
        jax.tree.map(lambda _: False, q.log_var),
    )


def _scale_log_var(multiplier: float) -> optax.GradientTransformation:
    return optax.stateless(
        lambda updates, params: updates._replace(
            log_var=jax.tree.map(lambda update: multiplier * update, updates.log_var)
        )
    )
