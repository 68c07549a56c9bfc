"""Call any network that turns a batch into features, in training or in evaluation."""

import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
from jaxtyping import Array


def call(module: Any, x: Array, train: bool, method: str = "__call__") -> Any:
    """Return `module(x)` in training or evaluation mode, by whichever argument the module takes for it.

    The signature decides: `train`, `training` and `is_training` are passed `train`; `deterministic` and
    `use_running_average` are passed `not train`; a signature with none of them is called with `x` alone, and
    one with `**kwargs` in place of them is passed `train`.
    """
    modes = {
        "train": train,
        "training": train,
        "is_training": train,
        "deterministic": not train,
        "use_running_average": not train,
    }
    signature = inspect.signature(_callee(module, method))
    accepted = {name: mode for name, mode in modes.items() if name in signature.parameters}
    if not accepted and _takes_keywords(signature):
        accepted = {"train": train}
    bound = signature.bind(x, **accepted)  # positional where it may be: nn.remat traces keyword arguments
    return getattr(module, method)(*bound.args, **bound.kwargs)


def features_of(module: nn.Module, x: Array, train: bool) -> Array:
    """Return `call(module, x, train)`, which has to be an array [batch, features]."""
    output = call(module, x, train)
    if getattr(output, "ndim", None) == 2:
        return output
    found = f"an array {list(output.shape)}" if hasattr(output, "shape") else f"a {type(output).__name__}"
    raise ValueError(
        f"{type(module).__name__} returned {found}: expected an array [batch, features]; "
        "pool or flatten it, or name a method that does with networks.FromMethod"
    )


class FromMethod(nn.Module):
    """A network whose features come from a method other than `__call__`: `FromMethod(autoencoder, "encode")`.

    Parameters and other variables have the paths that they have in `module`.
    """

    module: nn.Module
    method: str

    def __post_init__(self) -> None:
        if not callable(getattr(type(self.module), self.method, None)):
            raise ValueError(f"{type(self.module).__name__} has no method {self.method!r}")
        super().__post_init__()

    def setup(self) -> None:
        # Flax binds a module created in another's compact method to that one: wrap an unbound copy.
        self.network = self.module.copy(parent=None, name=None)
        nn.share_scope(self, self.network)

    def __call__(self, x: Array, *, train: bool = False) -> Any:
        """Return the output of the method."""
        return call(self.network, x, train, self.method)


def _callee(module: Any, method: str) -> Callable[..., Any]:
    """Return the method that arguments reach: a wrapper's `**kwargs` go to its `module`."""
    function = getattr(module, method)
    if method != "__call__" or not _takes_keywords(inspect.signature(function)):
        return function
    inner = module.layers[0] if isinstance(module, nn.Sequential) else getattr(module, "module", None)
    if isinstance(inner, nn.Module):
        return _callee(inner, method)
    return inner if callable(inner) else function


def _takes_keywords(signature: inspect.Signature) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
