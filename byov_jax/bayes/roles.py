"""Infer the roles of parameters from a tree of them, for when the network itself is not available.

`networks.roles` asks the network, and is exact. Here the shapes decide, and the names of the leaves: what
Flax, NNX, Equinox, Haiku and PyTorch call a kernel or the scale of a norm.
"""

import re
from collections.abc import Mapping

import jax

from byov_jax.bayes.paths import path_of
from byov_jax.role import Role

Roles = Mapping[str, Role]
"""`Role` by path."""

KERNELS = ("kernel", "weight", "w")
SCALES = ("scale", "weight", "gamma")
ATTENTION = re.compile(r"(^|/)(query|key|value|out|qkv)$")


def infer(params) -> dict[str, Role]:
    """Return the role of every parameter by path.

    The layer that owns a parameter is the container it lies in. It is a convolution if its kernel has four or
    more axes, linear if it has two, and a norm if it has a scale, and no parameter of more than one axis or
    a bias of as many axes as the scale. A kernel of three axes is that of a 1-D convolution if its layer is
    called so, or if it is a `weight`, as in PyTorch and Equinox, and linear otherwise, as in attention.
    Nothing counts as stacked.
    """
    layers: dict[str, dict[str, int]] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        layer, _, name = path_of(keys).rpartition("/")
        layers.setdefault(layer, {})[name] = getattr(leaf, "ndim", 0)
    return {
        f"{layer}/{name}" if layer else name: Role(_owner(layer, ranks, name))
        for layer, ranks in layers.items()
        for name in ranks
    }


def is_kernel(path: str, role: Role) -> bool:
    """Return whether a parameter is the kernel of a linear or convolutional layer."""
    return role.owner in ("linear", "convolution") and path.rpartition("/")[2] in KERNELS


def layer_paths(path: str, role: Role, depth: int) -> list[str]:
    """Return the path of each layer of a parameter; one stacked by a scan has one per index.

    >>> layer_paths("blocks/mlp/up/kernel", Role("linear", stacked=True), 2)
    ['blocks/0/mlp/up/kernel', 'blocks/1/mlp/up/kernel']
    """
    if not role.stacked:
        return [path]
    head, slash, rest = path.partition("blocks/")
    if slash:
        return [f"{head}blocks/{index}/{rest}" for index in range(depth)]
    return [f"{path}/{index}" for index in range(depth)]


def _owner(layer: str, ranks: dict[str, int], name: str) -> str:
    kernel = max((rank for leaf, rank in ranks.items() if leaf in KERNELS), default=0)
    if name not in (*KERNELS, *SCALES, "bias", "b", "beta", "offset", "embedding"):
        return "other"
    if max(ranks.values()) <= 1 and set(ranks) & {"kernel", "w"}:
        return "linear"  # a layer of one output, flattened: norms call their vector otherwise
    if max(ranks.values()) <= 1 or (kernel < 2 and set(ranks) & {"scale", "gamma"}):
        return "norm" if set(ranks) & set(SCALES) else "other"
    if set(ranks) & set(SCALES) and ranks.get("bias") == max(ranks.values()):
        return "norm"  # over several axes, or stacked
    if "embedding" in ranks or (kernel == 2 and "embed" in layer.rpartition("/")[2].lower()):
        return "embedding"
    if kernel >= 4:
        return "convolution"
    if kernel == 3:
        is_linear = ATTENTION.search(layer) or not ("weight" in ranks or "conv" in layer.lower())
        return "linear" if is_linear else "convolution"
    return "linear" if kernel == 2 else "other"
