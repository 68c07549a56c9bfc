"""Networks as Flax modules: encoders, heads, student and classifier, adapters of NNX and Equinox."""

from byov_jax.networks.call import FromMethod as FromMethod
from byov_jax.networks.equinox_adapter import from_equinox as from_equinox
from byov_jax.networks.heads import MLP as MLP
from byov_jax.networks.nnx_adapter import from_nnx as from_nnx
from byov_jax.networks.parameter_roles import roles as roles
from byov_jax.networks.residual import ResNet as ResNet
from byov_jax.networks.residual import resnet as resnet
from byov_jax.networks.student import Classifier as Classifier
from byov_jax.networks.student import Logits as Logits
from byov_jax.networks.student import Student as Student
from byov_jax.networks.student import Taps as Taps
from byov_jax.networks.vision_transformer import ViT as ViT
from byov_jax.networks.vision_transformer import vit as vit

__all__ = [
    "MLP",
    "Classifier",
    "FromMethod",
    "Logits",
    "ResNet",
    "Student",
    "Taps",
    "ViT",
    "from_equinox",
    "from_nnx",
    "resnet",
    "roles",
    "vit",
]
