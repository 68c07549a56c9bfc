"""The role of every parameter of a network, read from the types of its modules."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax

from byov_jax.role import OWNERS, Role

LAYERS: dict[str, tuple[type[nn.Module], ...]] = {
    "convolution": (nn.Conv, nn.ConvLocal, nn.ConvTranspose),
    "linear": (nn.Dense, nn.DenseGeneral, nn.Einsum),
    "norm": (
        nn.BatchNorm,
        nn.GroupNorm,
        nn.InstanceNorm,
        nn.LayerNorm,
        nn.RMSNorm,
        nn.SpectralNorm,
        nn.WeightNorm,
    ),
    "embedding": (nn.Embed,),
}
"""The layers of Flax linen by kind; subclasses are of the same kind."""


def roles(module: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Role]:
    """Return the role of every parameter of `module` by its path: `"encoder/blocks_0/mlp/up/kernel"`.

    The module is traced, not computed: `args` may be arrays or `jax.ShapeDtypeStruct`s. A module of your own
    names the kind of its parameters with a class attribute, `role: ClassVar[str] = "convolution"`; without,
    they are "other". Parameters that `nn.scan` or `nn.vmap` stack are found by their rank inside of it.

    Args:
      module: the network, without a posterior: `net.module` of a `Bayesian`.
      *args: what `module.init` takes after the key.
      **kwargs: as `args`.
    """
    found: dict[str, tuple[Role, tuple[int, ...]]] = {}

    def record(call, args, kwargs, context):
        # Inner modules return first, and so does the body of a scan: what is new here belongs to this module,
        # with the shape that it has inside of every scan.
        output = call(*args, **kwargs)
        module = context.module
        if module.scope is not None:
            own = module.parameter_roles() if hasattr(module, "parameter_roles") else {}
            for path, shape in _shapes(module.variables.get("params", {})):
                full_path = "/".join((*module.path, path))
                if full_path not in found:
                    found[full_path] = own.get(path) or _role(module), shape
        return output

    with nn.intercept_methods(record):
        variables = jax.eval_shape(
            lambda key, *args: module.init(key, *args, **kwargs), jax.random.key(0), *args
        )
    result = {}
    for path, shape in _shapes(variables.get("params", {})):
        role, inner = found.get(path, (Role("other"), shape))
        stacked = len(shape) > len(inner) and shape[len(shape) - len(inner) :] == inner
        result[path] = role._replace(stacked=role.stacked or stacked)
    return result


def _shapes(params: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield path and shape of every parameter, without the boxes of `nn.with_partitioning`."""
    leaves = jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
    )
    for keys, leaf in leaves:
        yield jax.tree_util.keystr(keys, simple=True, separator="/"), nn.meta.unbox(leaf).shape


def kind_of(layer: Any) -> str | None:
    """Return the class attribute `role` of a layer, which has to be one of the owners."""
    role = getattr(type(layer), "role", None)
    if role is None or role in OWNERS:
        return role
    if dataclasses.is_dataclass(layer) and "role" in {field.name for field in dataclasses.fields(layer)}:
        return None  # a field with a meaning of its own
    raise ValueError(f"{type(layer).__name__}.role={role!r}: expected one of {', '.join(OWNERS)}")


def _role(module: nn.Module) -> Role:
    kinds = (kind for kind, types in LAYERS.items() if isinstance(module, types))
    return Role(kind_of(module) or next(kinds, "other"))
