"""Residual networks from images to one feature vector per image."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

SIZES: dict[int, dict[str, Any]] = {
    18: {"stages": (2, 2, 2, 2), "bottleneck": False},
    50: {"stages": (3, 4, 6, 3), "bottleneck": True},
}
GROUPS = 32


def resnet(depth: int, **overrides: Any) -> "ResNet":
    """Build ResNet-18 (512 features) or ResNet-50 (2048): `resnet(18, stem="small")`.

    Args:
      depth: 18 or 50.
      **overrides: fields of `ResNet`.
    """
    if depth not in SIZES:
        raise ValueError(f"unknown ResNet depth {depth!r}: expected one of {', '.join(map(str, SIZES))}")
    return ResNet(**(SIZES[depth] | overrides))


class ResNet(nn.Module):
    """A residual network (He et al., 2016), version 1.5, without a classification head.

    Bottlenecks stride in the 3x3 convolution, paddings are torchvision's, and the last norm of every residual
    branch is initialised with scale zero, so that each block starts as its shortcut. Parameters, the
    statistics of the norms and the output are float32 for every compute type.

    Attributes:
      stages: number of blocks in each stage; a stage doubles the channels and, after the first, halves the
        image.
      bottleneck: blocks of 1x1, 3x3, 1x1 with a four times wider output, instead of 3x3, 3x3.
      width: channels of the stem.
      stem: "imagenet" (7x7 with stride 2, max pooling with stride 2) or "small" (3x3) for small images.
      norm: "batch" (decay 0.9), or "group" with weight-standardised convolutions (Kolesnikov et al., 2020),
        independent of the other images of the batch.
      axis_name: axis of `pmap` or `shard_map` over which batch statistics are averaged; not needed under
        plain `jit`, where they are global.
      remat: recompute a block's activations in the backward pass instead of storing them.
      dtype: compute type; that of inputs and parameters if None.
    """

    stages: tuple[int, ...]
    bottleneck: bool
    width: int = 64
    stem: str = "imagenet"
    norm: str = "batch"
    axis_name: str | None = None
    remat: bool = False
    dtype: DTypeLike | None = None

    def __post_init__(self) -> None:
        if self.stem not in ("imagenet", "small"):
            raise ValueError(f"stem={self.stem!r}: expected 'imagenet' or 'small'")
        if self.norm not in ("batch", "group"):
            raise ValueError(f"norm={self.norm!r}: expected 'batch' or 'group'")
        if self.norm == "group" and self.width % GROUPS:
            raise ValueError(f"width={self.width}: group norm needs a multiple of {GROUPS}")
        super().__post_init__()

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch features"]:
        """Return globally averaged features; with batch norm, `train` updates "batch_stats"."""
        conv = partial(Conv, standardize=self.norm == "group", dtype=self.dtype)
        norm = self._norm(train)
        side, stride = (7, 2) if self.stem == "imagenet" else (3, 1)
        x = conv(self.width, side, stride, name="conv_stem")(x)
        x = nn.relu(norm(name="norm_stem")(x))
        if self.stem == "imagenet":
            x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        block_class = nn.remat(Block) if self.remat else Block
        block = partial(block_class, bottleneck=self.bottleneck, conv=conv, norm=norm)
        for stage, blocks in enumerate(self.stages):
            for i in range(blocks):
                stride = 2 if stage > 0 and i == 0 else 1
                x = block(self.width * 2**stage, stride, name=f"stage{stage + 1}_block{i}")(x)
        return x.mean(axis=(1, 2), dtype=jnp.float32)

    def _norm(self, train: bool) -> Callable[..., nn.Module]:
        if self.norm == "group":
            return partial(
                nn.GroupNorm, num_groups=GROUPS, epsilon=1e-5, use_fast_variance=False, dtype=self.dtype
            )
        return partial(
            nn.BatchNorm,
            use_running_average=not train,
            momentum=0.9,
            epsilon=1e-5,
            use_fast_variance=False,
            axis_name=self.axis_name,
            dtype=self.dtype,
        )


class Block(nn.Module):
    """A residual block: 3x3, 3x3 convolutions, or 1x1, 3x3, 1x1 with `bottleneck`."""

    width: int
    stride: int
    bottleneck: bool
    conv: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: Float[Array, "batch height width channels"]) -> Float[Array, "batch _ _ features"]:
        if self.bottleneck:
            layers = [(self.width, 1, 1), (self.width, 3, self.stride), (4 * self.width, 1, 1)]
        else:
            layers = [(self.width, 3, self.stride), (self.width, 3, 1)]
        y = x
        for i, layer in enumerate(layers, start=1):
            y = self.conv(*layer, name=f"conv{i}")(y)
            if i < len(layers):
                y = nn.relu(self.norm(name=f"norm{i}")(y))
        y = self.norm(scale_init=nn.initializers.zeros, name=f"norm{len(layers)}")(y)
        if x.shape != y.shape:
            x = self.conv(y.shape[-1], 1, self.stride, name="conv_shortcut")(x)
            x = self.norm(name="norm_shortcut")(x)
        return nn.relu(x + y)


class Conv(nn.Module):
    """A square convolution without bias, padded by half its side.

    With `standardize`, the weights of every output channel are standardised to mean 0 and variance 1.
    """

    role: ClassVar[str] = "convolution"

    features: int
    side: int
    stride: int = 1
    standardize: bool = False
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "batch height width channels"]) -> Float[Array, "batch _ _ features"]:
        init = nn.initializers.truncated_normal(stddev=0.02)
        kernel = self.param("kernel", init, (self.side, self.side, x.shape[-1], self.features))
        if self.standardize:
            kernel = jax.nn.standardize(kernel, axis=(0, 1, 2), epsilon=1e-10)
        x, kernel = nn.dtypes.promote_dtype(x, kernel, dtype=self.dtype)
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(self.stride, self.stride),
            padding=[(self.side // 2, self.side // 2)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
