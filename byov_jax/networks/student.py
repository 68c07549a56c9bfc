"""The trained networks: an encoder with BYOL's projector and predictor, or with a linear classifier."""

from typing import ClassVar, NamedTuple

import flax.linen as nn
from jaxtyping import Array, Float

from byov_jax.networks.call import features_of

Images = Float[Array, "batch height width channels"]


class Taps(NamedTuple):
    """The outputs of the parts of a `Student`, each [batch, features]."""

    encoder: Array
    projector: Array
    predictor: Array


class Student(nn.Module):
    """Encoder, projector and predictor in sequence: BYOL's online network (Grill et al., 2020).

    Each part is a Flax module that returns [batch, features]; `call.call` passes it the training mode.
    The top-level names of the parameters are those of the fields, even if the modules are named.
    """

    teacher_parts: ClassVar[tuple[str, ...]] = ("encoder", "projector")
    """The parts that an EMA teacher keeps."""

    encoder: nn.Module
    projector: nn.Module
    predictor: nn.Module

    def __post_init__(self) -> None:
        if self.projector is self.predictor:
            raise ValueError("projector and predictor are one module and would share parameters: build two")
        super().__post_init__()

    def __call__(self, x: Images, *, train: bool = False) -> Taps:
        """Return the outputs of all three parts."""
        features, projection = self.project(x, train=train)
        return Taps(features, projection, features_of(self.predictor, projection, train))

    def project(
        self, x: Images, *, train: bool = False
    ) -> tuple[Float[Array, "batch features"], Float[Array, "batch projections"]]:
        """Return features and projections: the forward pass of the teacher, without the predictor."""
        features = features_of(self.encoder, x, train)
        return features, features_of(self.projector, features, train)


class Logits(NamedTuple):
    """The outputs of a `Classifier`: features [batch, features] and logits [batch, classes]."""

    encoder: Array
    logits: Array


class Classifier(nn.Module):
    """Any encoder, as in `Student`, with a linear layer `head`: the network of the supervised methods."""

    encoder: nn.Module
    classes: int

    @nn.compact
    def __call__(self, x: Images, *, train: bool = False) -> Logits:
        """Return features and logits."""
        features = features_of(self.encoder, x, train)
        init = nn.initializers.truncated_normal(stddev=0.02)
        return Logits(features, nn.Dense(self.classes, kernel_init=init, name="head")(features))
