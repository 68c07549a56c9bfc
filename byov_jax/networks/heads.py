"""The projector and predictor of BYOL: small multi-layer perceptrons."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

Dense = partial(nn.Dense, kernel_init=nn.initializers.truncated_normal(stddev=0.02))


class MLP(nn.Module):
    """Hidden layers of Dense, norm and ReLU, then a plain Dense: `MLP((4096, 256))` in BYOL.

    Parameters, batch statistics and the output are float32 for every compute type.

    Attributes:
      widths: output features of each Dense.
      norm: "batch" (decay 0.9), "layer" or "none".
      output_bias: add a bias to the last Dense, which BYOL's heads do without.
      axis_name: axis of `pmap` or `shard_map` over which batch statistics are averaged; not needed under
        plain `jit`, where they are global.
      dtype: compute type; that of inputs and parameters if None.
    """

    widths: tuple[int, ...]
    norm: str = "batch"
    output_bias: bool = False
    axis_name: str | None = None
    dtype: DTypeLike | None = None

    def __post_init__(self) -> None:
        if not self.widths:
            raise ValueError("widths=(): expected at least one width, such as (4096, 256)")
        if self.norm not in ("batch", "layer", "none"):
            raise ValueError(f"norm={self.norm!r}: expected 'batch', 'layer' or 'none'")
        super().__post_init__()

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch features"], *, train: bool = False
    ) -> Float[Array, "batch outputs"]:
        """Return the last Dense's output; with batch norm, `train` updates "batch_stats"."""
        *hidden, output = self.widths
        for i, width in enumerate(hidden):
            x = Dense(width, dtype=self.dtype, name=f"dense_{i}")(x)
            x = nn.relu(self._normalize(x, train, f"norm_{i}"))
        last = Dense(output, use_bias=self.output_bias, dtype=self.dtype, name=f"dense_{len(hidden)}")
        return last(x).astype(jnp.float32)

    def _normalize(self, x: Array, train: bool, name: str) -> Array:
        if self.norm == "batch":
            norm = nn.BatchNorm(
                momentum=0.9,
                epsilon=1e-5,
                # The embeddings of an untrained network are nearly equal: E[x^2] - E[x]^2 would cancel.
                use_fast_variance=False,
                axis_name=self.axis_name,
                dtype=self.dtype,
                name=name,
            )
            return norm(x, use_running_average=not train)
        if self.norm == "layer":
            return nn.LayerNorm(use_fast_variance=False, dtype=self.dtype, name=name)(x)
        return x
