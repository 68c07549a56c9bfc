"""Deterministic Flax modules: encoders, heads, and the student and classifier built from them."""

from byov_jax.networks.heads import MLP as MLP
from byov_jax.networks.resnet import ResNet as ResNet
from byov_jax.networks.resnet import resnet as resnet
from byov_jax.networks.student import Classifier as Classifier
from byov_jax.networks.student import Logits as Logits
from byov_jax.networks.student import Student as Student
from byov_jax.networks.student import Taps as Taps
from byov_jax.networks.vit import ViT as ViT
from byov_jax.networks.vit import vit as vit
