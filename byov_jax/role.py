"""The role of a parameter in its network: the kind of layer that owns it, and whether layers are stacked."""

from typing import NamedTuple

OWNERS = ("convolution", "linear", "norm", "embedding", "other")
"""The kinds of layers that own parameters."""


class Role(NamedTuple):
    """The role of a parameter, which `networks.roles` reads from the network, never from the name.

    Attributes:
      owner: the kind of layer: "convolution" (patch embeddings and transposed convolutions too), "linear"
        (projections of attention too), "norm" (scales and biases of any normalisation), "embedding" (tables
        of vectors), or "other" (class tokens, position embeddings, layer scales).
      stacked: whether the leading axis counts layers, as under `nn.scan` or `nn.vmap` over parameters.
    """

    owner: str
    stacked: bool = False
