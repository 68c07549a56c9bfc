"""What is trained: an encoder with BYOL's two heads, or with a classifier."""

from typing import NamedTuple

import flax.linen as nn
from jaxtyping import Array, Float

Images = Float[Array, "batch height width channels"]


class Taps(NamedTuple):
    """What `Student` computes on the way, each [batch, features]."""

    encoder: Array
    projector: Array
    predictor: Array


class Student(nn.Module):
    """Encoder, projector and predictor in a row: BYOL's online network (Grill et al., 2020).

    The parameters' top-level names are those of the fields, whatever the modules' own names.
    """

    encoder: nn.Module
    projector: nn.Module
    predictor: nn.Module

    def __post_init__(self) -> None:
        if self.projector is self.predictor:
            raise ValueError("projector and predictor are one module and would share parameters: build two")
        super().__post_init__()

    def __call__(self, x: Images, *, train: bool = False) -> Taps:
        """Return the output of all three parts."""
        features, projection = self.project(x, train=train)
        return Taps(features, projection, self.predictor(projection, train=train))

    def project(
        self, x: Images, *, train: bool = False
    ) -> tuple[Float[Array, "batch features"], Float[Array, "batch projections"]]:
        """Return features and projections: the teacher's path, which needs no variables of the predictor."""
        features = self.encoder(x, train=train)
        return features, self.projector(features, train=train)


class Logits(NamedTuple):
    """What `Classifier` computes: features [batch, features] and logits [batch, classes]."""

    encoder: Array
    logits: Array


class Classifier(nn.Module):
    """An encoder with a linear layer named `head`: the network of the supervised methods."""

    encoder: nn.Module
    classes: int

    @nn.compact
    def __call__(self, x: Images, *, train: bool = False) -> Logits:
        """Return features and logits."""
        features = self.encoder(x, train=train)
        init = nn.initializers.truncated_normal(stddev=0.02)
        return Logits(features, nn.Dense(self.classes, kernel_init=init, name="head")(features))
