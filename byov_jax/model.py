"""A trained model: `load` a run directory, `predict` with uncertainty, `embed`."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from byov_jax import files
from byov_jax.bayes import posterior
from byov_jax.bayes.posterior import Posterior
from byov_jax.checkpoints import checkpointer, store
from byov_jax.data.loading.lazy import LazyImages
from byov_jax.errors import RunError
from byov_jax.evaluation import forward, linear_probe, predictive
from byov_jax.evaluation.linear_probe import LinearProbe
from byov_jax.evaluation.predictive import Prediction
from byov_jax.images.views import Views
from byov_jax.methods.method import Method
from byov_jax.methods.objectives import Batch
from byov_jax.methods.state import State
from byov_jax.methods.teacher import Teacher
from byov_jax.role import Role
from byov_jax.training import build, loop, run_directory
from byov_jax.training.config import Config

ImageArray = Array | np.ndarray | LazyImages


@dataclasses.dataclass(frozen=True)
class Model:
    """A network, its weights, and the classifier on its features.

    Attributes:
      config: the config of its training.
      network: the Flax module, a `networks.Student` or a `networks.Classifier`.
      views: the augmentations it was trained with, whose mean and std normalise its inputs.
      posterior: the weights; without log-variances for deterministic methods.
      stats: the other variables (`batch_stats`, ...).
      teacher: the EMA teacher; empty for supervised methods.
      probe: the linear classifier on its features, None before one is fitted.
      step: optimizer steps taken.
    """

    config: Config
    network: Any
    views: Views
    posterior: Posterior
    stats: dict[str, Any]
    teacher: Teacher
    probe: LinearProbe | None
    step: int

    @property
    def supervised(self) -> bool:
        """Whether it was trained with labels, and so has a classification head."""
        return self.config.traits.supervised

    @property
    def bayesian(self) -> bool:
        """Whether any weight has a posterior."""
        return posterior.size(self.posterior) > 0

    @property
    def roles(self) -> dict[str, Role]:
        """What every parameter is, by path: the argument of `pruning` and `layer_statistics`."""
        return build.roles(self.config, self.network)

    def predict(self, images: ImageArray, draws: int = 30, seed: int = 0) -> Prediction:
        """Return class probabilities with their uncertainty.

        Args:
          images: [n, height, width, channels], uint8 or float in [0, 1].
          draws: number of weight draws to average over; 0 for the posterior's mean.
          seed: decides the draws, which are the same for all images.

        Returns:
          A `Prediction`: `.probs`, `.std`, `.entropy`, `.mutual_information` and more, one row an image.
        """
        self._check(images)
        q, apply = self.classifier()
        if not draws or not self.bayesian:
            q, draws = posterior.point(q.mean), 1
        return predictive.statistics(jax.random.key(seed), q, apply, images, draws)

    def embed(
        self,
        images: ImageArray,
        tap: str = "encoder",
        draws: int = 0,
        *,
        seed: int = 0,
        teacher: bool = False,
        blocks: int = 0,
    ) -> Array:
        """Return features of images.

        Args:
          images: [n, height, width, channels], uint8 or float in [0, 1].
          tap: after the "encoder", the "projector" or the "predictor".
          draws: 0 for the posterior's mean; K for K draws of the weights.
          seed: decides the draws.
          teacher: take the EMA teacher's weights, which are deterministic and have no predictor.
          blocks: if not 0, the concatenated pooled tokens of this many last blocks of a ViT, instead of the
            encoder's output.

        Returns:
          [n, features], or [K, n, features] with draws.
        """
        self._check(images)
        q, apply = (self.of_teacher() if teacher else self).tap(tap, blocks=blocks)
        mode = "mc" if draws else "mean"
        features = predictive.predict(jax.random.key(seed), q, apply, images, draws or 1, mode=mode)
        return features if draws else features[0]

    def tap(self, tap: str = "encoder", *, blocks: int = 0):
        """Return `(q, apply)` for `predictive` with the features at `tap` as outputs; args as in `embed`."""
        if tap not in forward.TAPS:
            raise ValueError(f"tap={tap!r}: expected one of {', '.join(forward.TAPS)}")
        if tap not in self.posterior.mean:
            raise ValueError(f"tap={tap!r}: this network has only {', '.join(self.posterior.mean)}")
        if blocks and (tap != "encoder" or not hasattr(self.network.encoder, "block_features")):
            raise ValueError(f"blocks={blocks}: only the encoder of a ViT has blocks")
        if blocks and not 1 <= blocks <= self.network.encoder.depth:
            raise ValueError(f"blocks={blocks}: the encoder has {self.network.encoder.depth}")
        parts = forward.TAPS[: forward.TAPS.index(tap) + 1]
        q = forward.select_variables(self.posterior, self.stats, parts)
        return q, forward.features(self.network, self.views, tap, blocks)

    def taps(self):
        """Return `(q, apply)` for `predictive` with all outputs: a `networks.Taps` or `networks.Logits`."""
        q = forward.select_variables(self.posterior, self.stats, tuple(self.posterior.mean))
        return q, forward.outputs(self.network, self.views)

    def classifier(self, others: Mapping[str, LinearProbe] | None = None):
        """Return `(q, apply)` for `predictive.statistics`: probabilities [n, classes] and features [n, d].

        The classifier is the network's head if it was trained with labels, else the probe on its encoder's
        features, a point estimate that all draws share. The probabilities of `others`, further probes, are a
        third output.
        """
        if self.supervised:
            q = forward.select_variables(self.posterior, self.stats, ("encoder", "head"))
        elif self.probe is not None:
            q = forward.add_point_estimates(self.tap()[0], probe=self.probe)
        else:
            raise RunError(
                "this model has no classifier: fit one with model.with_probe(images, labels), or run "
                "byov evaluate on its directory"
            )
        q = forward.add_point_estimates(q, others=dict(others or {}))
        return q, forward.classifier(self.network, self.views, own_head=self.supervised)

    def with_probe(self, images: ImageArray, labels: np.ndarray, *, classes: int | None = None) -> "Model":
        """Return this model with a linear classifier fitted on the mean features of labelled images."""
        fitted = linear_probe.fit(self.embed(images), labels, classes=classes or int(labels.max()) + 1)
        return dataclasses.replace(self, probe=fitted)

    def of_teacher(self) -> "Model":
        """Return the EMA teacher as a model: deterministic, without predictor, without a probe."""
        if not self.teacher.params:
            raise ValueError(f"a {self.config.method} model has no teacher")
        q = posterior.point(self.teacher.params)
        return dataclasses.replace(self, posterior=q, stats=self.teacher.stats, probe=None)

    def untrained(self) -> "Model":
        """Return the network as it was before training, without a probe."""
        method = _method(self.config, self.network)
        key = loop.keys(self.config.seed, self.config.prng).init
        return from_state(self.config, self.network, method.init(key, _example(self.config)))

    def _check(self, images: ImageArray) -> None:
        expected = self.config.data.image
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"images are {images.shape}; this model takes [n, {', '.join(map(str, expected))}]"
            )


def load(run_dir: str | Path) -> Model:
    """Load the trained model of a run directory from its newest checkpoint."""
    run = Path(run_dir)
    config = run_directory.read_config(run)
    folder = run / run_directory.CHECKPOINTS
    run_directory.check_unchanged(run, config, store.metadata(folder).get("config"))
    try:
        network = build.network(config)
        method = build.method(config, network)
        like = jax.eval_shape(method.init, jax.random.key(0), _example(config))
        weights = {name: getattr(like, name) for name in ("step", "posterior", "stats", "teacher")}
    except Exception as error:  # Flax and JAX raise many kinds for wrong values
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{run / run_directory.CONFIG} describes no network: {reason}") from None
    restored = checkpointer.restore_newest(folder, weights, partial=True)
    if restored is None:
        raise RunError(f"{run} has no finished checkpoint in {run_directory.CHECKPOINTS}/")
    state = like._replace(**restored)
    return from_state(config, network, state, _read_probe(run, int(state.step)))


def from_state(config: Config, network: Any, state: State, fitted: LinearProbe | None = None) -> Model:
    """Return the model of a training state; `network` is `build.network(config)`."""
    return Model(
        config=config,
        network=network,
        views=build.views(config),
        posterior=state.posterior,
        stats=state.stats,
        teacher=state.teacher,
        probe=fitted,
        step=int(state.step),
    )


def save_probe(run_dir: str | Path, model: Model) -> None:
    """Save the model's probe in its run directory; `load` uses it until the run is trained further."""
    if model.probe is None:
        raise ValueError("the model has no probe to save: fit one with model.with_probe(images, labels)")
    arrays = {name: np.asarray(value) for name, value in model.probe._asdict().items()}
    files.write_npz(Path(run_dir) / run_directory.PROBE, arrays | {"step": np.asarray(model.step)})


@lru_cache(maxsize=16)
def _method(config: Config, network: Any) -> Method:
    """Return the method of a config, whose `init` is compiled once for all models of it."""
    return build.method(config, network)


def _read_probe(run: Path, step: int) -> LinearProbe | None:
    file, remedy = run / run_directory.PROBE, "delete it, and `byov evaluate` fits another"
    if not file.is_file():
        return None
    try:
        arrays = files.read_npz(file)
        if int(arrays["step"]) != step:
            return None  # the features it was fitted on have changed since
        return LinearProbe(**{name: jnp.asarray(arrays[name]) for name in LinearProbe._fields})
    except RunError as error:
        raise RunError(f"{error}; {remedy}") from None
    except KeyError as error:
        raise RunError(f"{file} is not a probe: it has no array {error}; {remedy}") from None
    except (ValueError, TypeError) as error:
        raise RunError(f"{file} is not a probe: {error}; {remedy}") from None


def _example(config: Config) -> Batch:
    return Batch(jnp.zeros((1, *config.data.image), jnp.uint8), jnp.zeros((1,), jnp.int32))
