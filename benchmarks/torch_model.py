"""A student of a ViT and MLP heads in PyTorch, with the weights of ours, and BYOL's step on it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from byov_jax import networks
from byov_jax.networks.vision_transformer import sincos


def student(network: networks.Student, params: Mapping[str, Any], side: int) -> nn.Sequential:
    """Return encoder, projector and predictor.

    Args:
      network: ours, a mean-pooled `ViT` with fixed positions and two heads with batch norm.
      params: its parameters, which are copied. Of a gradient, the parameters of the result are the same
        gradient in PyTorch's layout.
      side: of the square images in pixels.
    """
    encoder: Any = network.encoder
    return nn.Sequential(
        ViT(encoder, params["encoder"], side), mlp(params["projector"]), mlp(params["predictor"])
    )


class Step:
    """BYOL's step on two views: loss, gradient, AdamW, teacher.

    With layers of bayesian-torch, the loss has their KL over the batch size, as the package suggests, and the
    teacher follows the means. These layers draw weights at every call, that is twice in a step, and overwrite
    the noise that a pending backward pass needs: each view has its own.
    """

    def __init__(self, online: nn.Sequential, target: nn.Sequential, *, tau: float, compiled: bool = False):
        self.online, self.target, self.tau = online, target, tau
        self.bayesian = any(hasattr(layer, "kl_loss") for layer in online.modules())
        self.averaged = list(target.parameters())
        self.followed = [
            weight for name, weight in online[: len(target)].named_parameters() if "rho_" not in name
        ]
        # The loop over parameters that is PyTorch's default on a CPU is slower.
        self.optimizer = torch.optim.AdamW(
            online.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self.term: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = self._term
        if compiled:
            self.term = torch.compile(self._term)

    def __call__(self, x1: torch.Tensor, x2: torch.Tensor) -> float:
        """Take a step and return the data term of the loss before it."""
        loss = self.backward(x1, x2)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.averaged, self.followed, 1.0 - self.tau)
        return loss

    def backward(self, x1: torch.Tensor, x2: torch.Tensor) -> float:
        """Set the gradients and return the data term of the loss."""
        self.optimizer.zero_grad()
        loss = 0.0
        for x, y in ((x1, x2), (x2, x1)):
            term = self.term(x, y)
            term.backward()
            loss += term.item()
        if self.bayesian:
            kl = sum(layer.kl_loss() for layer in self.online.modules() if hasattr(layer, "kl_loss"))
            (kl / len(x1)).backward()
        return loss

    def _term(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting one view from the other."""
        with torch.no_grad():
            target = self.target(y)
        return torch.mean(2.0 - 2.0 * F.cosine_similarity(self.online(x), target))


class ViT(nn.Module):
    """`networks.ViT` with fixed positions and mean pooling, of [batch, height, width, channels] images."""

    def __init__(self, network: networks.ViT, params: Mapping[str, Any], side: int):
        super().__init__()
        self.patch = network.patch
        self.embedding = linear(params["patch_embedding"])
        positions = np.array(sincos(side // network.patch, side // network.patch, network.width))
        self.register_buffer("positions", torch.from_numpy(positions))
        self.blocks = nn.Sequential(
            *(Block(network.heads, params[f"blocks_{i}"]) for i in range(network.depth))
        )
        self.norm = layer_norm(params["norm"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        p = self.patch
        x = x.view(batch, height // p, p, width // p, p, channels).permute(0, 1, 3, 2, 4, 5)
        tokens = self.embedding(x.reshape(batch, -1, p * p * channels)) + self.positions
        return self.norm(self.blocks(tokens).mean(dim=1))


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, heads: int, params: Mapping[str, Any]):
        super().__init__()
        self.heads = heads
        self.norm_attention = layer_norm(params["norm_attention"])
        self.qkv, self.out = linear(params["attention"]["qkv"]), linear(params["attention"]["out"])
        self.norm_mlp = layer_norm(params["norm_mlp"])
        self.up, self.down = linear(params["mlp"]["up"]), linear(params["mlp"]["down"])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attend(self.norm_attention(tokens))
        return tokens + self.down(F.gelu(self.up(self.norm_mlp(tokens))))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).reshape(batch, tokens, width))


def mlp(params: Mapping[str, Any]) -> nn.Sequential:
    """Return our `networks.MLP` with batch norm."""
    layers: list[nn.Module] = []
    *hidden, output = sorted(name for name in params if name.startswith("dense_"))
    for name in hidden:
        norm = params[name.replace("dense", "norm")]
        layers += [linear(params[name]), _loaded(nn.BatchNorm1d(norm["scale"].size), norm), nn.ReLU()]
    return nn.Sequential(*layers, linear(params[output]))


def linear(params: Mapping[str, Any]) -> nn.Linear:
    """Return a layer with our kernel, whose last axis are the outputs."""
    kernel = np.array(params["kernel"])
    kernel = kernel.reshape(-1, kernel.shape[-1])
    return _loaded(nn.Linear(*kernel.shape, bias="bias" in params), {**params, "kernel": kernel.T})


def layer_norm(params: Mapping[str, Any]) -> nn.LayerNorm:
    """Return a layer norm with our scale and bias."""
    return _loaded(nn.LayerNorm(params["scale"].size, eps=1e-6), params)


def bayesian(network: nn.Sequential, sigma: float) -> nn.Sequential:
    """Make all linear layers Bayesian by bayesian-torch, with the same means; the norms stay as they are."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    means = {
        name: module.state_dict() for name, module in network.named_modules() if isinstance(module, nn.Linear)
    }
    dnn_to_bnn(
        network,
        {
            "type": "Reparameterization",
            "prior_mu": 0.0,
            "prior_sigma": 1.0,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": 0.0,
            "moped_enable": False,
        },
    )
    rho = float(np.log(np.expm1(sigma)))
    for name, parameters in means.items():
        layer = network.get_submodule(name)
        for parameter, mean in parameters.items():
            getattr(layer, f"mu_{parameter}").data.copy_(mean)
            getattr(layer, f"rho_{parameter}").data.fill_(rho)
    return network


def _loaded(layer: Any, params: Mapping[str, Any]) -> Any:
    """Copy our parameters of one layer into it."""
    names = {"kernel": "weight", "scale": "weight", "bias": "bias"}
    layer.load_state_dict(
        {names[name]: torch.from_numpy(np.array(value)) for name, value in params.items()},
        strict=not isinstance(layer, nn.BatchNorm1d),  # which has statistics too
    )
    return layer
