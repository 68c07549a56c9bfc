"""A trained model: `load` a run directory, `predict` with uncertainty, `embed`."""

import dataclasses
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.lib.npyio import NpzFile

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
from byov_jax.methods.objectives import Batch
from byov_jax.methods.step import State
from byov_jax.methods.teacher import Teacher
from byov_jax.training import build, loop, run_directory

ImageArray = Array | np.ndarray | LazyImages


@dataclasses.dataclass(frozen=True)
class Model:
    """A network, its weights, and the classifier on top.

    Attributes:
      config: what it was trained with.
      network: the Flax module, a `networks.Student` or a `networks.Classifier`.
      views: the augmentations it was trained with, whose mean and std normalise its inputs.
      posterior: its weights; a deterministic method's have no log-variances.
      stats: its other variables (`batch_stats`, ...).
      teacher: the EMA teacher; empty for supervised methods.
      probe: the linear classifier on its features, None if there is none yet.
      step: optimizer steps taken.
    """

    config: dict[str, Any]
    network: Any
    views: Views
    posterior: Posterior
    stats: dict[str, Any]
    teacher: Teacher
    probe: LinearProbe | None
    step: int

    @property
    def supervised(self) -> bool:
        """Whether it was trained with labels and so has a classifier of its own."""
        return self.config["method"].startswith("supervised")

    @property
    def bayesian(self) -> bool:
        """Whether any weight has a posterior."""
        return posterior.size(self.posterior) > 0

    def predict(self, images: ImageArray, draws: int = 30, seed: int = 0) -> Prediction:
        """Class probabilities with their uncertainty.

        Args:
          images: [n, height, width, channels], uint8 or float in [0, 1].
          draws: weight draws that are averaged; 0 for the posterior's mean alone.
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
        """Features of images.

        Args:
          images: [n, height, width, channels], uint8 or float in [0, 1].
          tap: after the "encoder", the "projector" or the "predictor".
          draws: 0 for the posterior's mean; K for K draws of the weights.
          seed: decides the draws.
          teacher: take the EMA teacher's weights, which are deterministic and have no predictor.
          blocks: if not 0, the pooled tokens of the last so many blocks of a ViT, side by side, instead of
            the encoder's output.

        Returns:
          [n, features], or [K, n, features] with draws.
        """
        self._check(images)
        q, apply = (self.of_teacher() if teacher else self).tap(tap, blocks=blocks)
        mode = "mc" if draws else "mean"
        features = predictive.predict(jax.random.key(seed), q, apply, images, draws or 1, mode=mode)
        return features if draws else features[0]

    def tap(self, tap: str = "encoder", *, blocks: int = 0):
        """`(q, apply)` for `predictive`, whose outputs are the features at `tap`. Args as in `embed`."""
        if tap not in forward.TAPS:
            raise ValueError(f"tap={tap!r}: expected one of {', '.join(forward.TAPS)}")
        if tap not in self.posterior.mean:
            raise ValueError(f"tap={tap!r}: this network has only {', '.join(self.posterior.mean)}")
        if blocks and (tap != "encoder" or not hasattr(self.network.encoder, "block_features")):
            raise ValueError(f"blocks={blocks}: only the encoder of a ViT has blocks")
        if blocks and not 1 <= blocks <= self.network.encoder.depth:
            raise ValueError(f"blocks={blocks}: the encoder has {self.network.encoder.depth}")
        parts = forward.TAPS[: forward.TAPS.index(tap) + 1]
        q = forward.variables_of(self.posterior, self.stats, parts)
        return q, forward.at_tap(self.network, self.views, tap, blocks)

    def taps(self):
        """`(q, apply)` whose outputs are all that the network computes, a `networks.Taps` or `.Logits`."""
        q = forward.variables_of(self.posterior, self.stats, tuple(self.posterior.mean))
        return q, forward.all_outputs(self.network, self.views)

    def classifier(self, others: Mapping[str, LinearProbe] | None = None):
        """`(q, apply)` for `predictive.statistics`: class probabilities [n, classes] and features [n, d].

        The classifier is the network's own head if it was trained with labels, else the probe on its
        encoder's features. The probe is a point estimate: draws go through the encoder, then through the
        same probe. `others` are further probes on the encoder's features; their probabilities come third.
        """
        if self.supervised:
            q = forward.variables_of(self.posterior, self.stats, ("encoder", "head"))
        elif self.probe is not None:
            q = forward.with_point_estimates(self.tap()[0], probe=self.probe)
        else:
            raise RunError(
                "this model has no classifier yet: fit one with model.with_probe(images, labels), or run "
                "python -m byov_jax.cli.evaluate on its directory"
            )
        q = forward.with_point_estimates(q, others=dict(others or {}))
        return q, forward.classifier(self.network, self.views, own_head=self.supervised)

    def with_probe(self, images: ImageArray, labels: np.ndarray, *, classes: int | None = None) -> "Model":
        """This model with a linear classifier fitted on the mean features of labelled images."""
        fitted = linear_probe.fit(self.embed(images), labels, classes=classes or int(labels.max()) + 1)
        return dataclasses.replace(self, probe=fitted)

    def of_teacher(self) -> "Model":
        """The EMA teacher as a model of its own: deterministic, without predictor, without a probe yet."""
        if not self.teacher.params:
            raise ValueError(f"a {self.config['method']} model has no teacher")
        q = posterior.point(self.teacher.params)
        return dataclasses.replace(self, posterior=q, stats=self.teacher.stats, probe=None)

    def untrained(self) -> "Model":
        """The same network as it was before the first step of training, without a probe."""
        method = build.method(self.config, self.network)
        key = loop.keys(self.config["seed"], self.config["prng"]).init
        return from_state(self.config, self.network, method.init(key, _example(self.config)))

    def _check(self, images: ImageArray) -> None:
        expected = tuple(self.config["data"]["image"])
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"images are {images.shape}; this model takes [n, {', '.join(map(str, expected))}]"
            )


def load(run_dir: str | Path) -> Model:
    """The trained model in a run directory, at its newest checkpoint."""
    run = Path(run_dir)
    config = run_directory.read_config(run)
    folder = run / run_directory.CHECKPOINTS
    run_directory.check_unchanged(run, config, store.metadata(folder).get("config"))
    try:
        network = build.network(config)
        method = build.method(config, network)
        like = jax.eval_shape(method.init, jax.random.key(0), _example(config))
    except Exception as error:  # whatever is wrong with the values of a config, Flax and JAX say it
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{run / run_directory.CONFIG} describes no network: {reason}") from None
    state = checkpointer.restore_newest(folder, like)
    if state is None:
        raise RunError(f"{run} has no finished checkpoint in {run_directory.CHECKPOINTS}/")
    return from_state(config, network, state, _read_probe(run, int(state.step)))


def from_state(
    config: dict[str, Any], network: Any, state: State, fitted: LinearProbe | None = None
) -> Model:
    """The model that a training state is: `network` comes from `recipe.network(config)`."""
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
    """Stores the model's probe with its run, where `load` finds it until the run is trained further."""
    if model.probe is None:
        raise ValueError("the model has no probe to save: fit one with model.with_probe(images, labels)")
    arrays = {name: np.asarray(value) for name, value in model.probe._asdict().items()}
    files.write_npz(Path(run_dir) / run_directory.PROBE, arrays | {"step": np.asarray(model.step)})


def _read_probe(run: Path, step: int) -> LinearProbe | None:
    file = run / run_directory.PROBE
    if not file.is_file():
        return None
    try:
        with file.open("rb") as stream, NpzFile(stream, allow_pickle=False) as arrays:
            if int(arrays["step"]) != step:
                return None  # it was fitted on features that training has changed since
            return LinearProbe(**{name: jnp.asarray(arrays[name]) for name in LinearProbe._fields})
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(f"{file} cannot be read: {error}; delete it, and evaluate fits another") from None


def _example(config: dict[str, Any]) -> Batch:
    return Batch(jnp.zeros((1, *config["data"]["image"]), jnp.uint8), jnp.zeros((1,), jnp.int32))
