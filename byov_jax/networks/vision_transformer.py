"""The vision transformer from images to one feature vector per image."""

import re
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

Images = Float[Array, "batch height width channels"]
Tokens = Float[Array, "batch tokens features"]
Heads = Float[Array, "batch tokens heads features"]
Features = Float[Array, "batch features"]
Initializer = nn.initializers.Initializer

SIZES = {
    "Ti": {"width": 192, "depth": 12, "heads": 3},
    "S": {"width": 384, "depth": 12, "heads": 6},
    "B": {"width": 768, "depth": 12, "heads": 12},
    "L": {"width": 1024, "depth": 24, "heads": 16},
}

truncated_normal = nn.initializers.truncated_normal
LayerNorm = partial(nn.LayerNorm, epsilon=1e-6, use_fast_variance=False)


def vit(name: str, **overrides: Any) -> "ViT":
    """Build a standard size: `vit("B/16")`, `vit("S/8", drop_path=0.1)`.

    Args:
      name: size (Ti, S, B or L) and patch side.
      **overrides: fields of `ViT`.
    """
    match = re.fullmatch(rf"({'|'.join(SIZES)})/([1-9]\d*)", name)
    if match is None:
        raise ValueError(f"unknown ViT {name!r}: expected SIZE/PATCH with SIZE one of {', '.join(SIZES)}")
    size, patch = match.groups()
    return ViT(**({"patch": int(patch)} | SIZES[size] | overrides))


class ViT(nn.Module):
    """A pre-norm vision transformer (Dosovitskiy et al., 2021) without a classification head.

    Parameters, softmax, the statistics of LayerNorm and the output are float32 for every compute type.

    Attributes:
      patch: side of a square patch in pixels, a divisor of both sides of the image.
      width: features per token.
      depth: number of blocks.
      heads: attention heads, a divisor of `width`.
      mlp_width: hidden features of a block's MLP; 4 * width if None.
      pool: "token" returns a class token; "mean" averages the patches and "concat" concatenates them, which
        keeps their positions, without class token.
      init_std: standard deviation of the initial weights. 0.02 is the paper's, for width 768. It makes
        networks of width 100 or less nearly linear: use 1 / sqrt(width) there.
      positions: "learned", or "sincos" for the fixed 2-D embedding of MoCo-v3 (Chen et al., 2021).
      drop_path: stochastic depth rate of the last block; rates rise linearly from 0 at the first.
      frozen_patch: do not train the random patch projection: it is in the collection "frozen" instead of
        "params" (MoCo-v3, for stability).
      scan: scan over the blocks: one is compiled, and parameters are stacked on axis 0 under `blocks`.
      remat: recompute a block's activations in the backward pass instead of storing them.
      dtype: compute type; that of inputs and parameters if None.
    """

    patch: int
    width: int
    depth: int
    heads: int
    mlp_width: int | None = None
    pool: str = "token"
    init_std: float = 0.02
    positions: str = "learned"
    drop_path: float = 0.0
    frozen_patch: bool = False
    scan: bool = False
    remat: bool = False
    dtype: DTypeLike | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is not a multiple of heads={self.heads}")
        if self.pool not in ("token", "mean", "concat"):
            raise ValueError(f"pool={self.pool!r}: expected 'token', 'mean' or 'concat'")
        if not self.init_std > 0:
            raise ValueError(f"init_std={self.init_std}: expected a positive number")
        if self.positions not in ("learned", "sincos"):
            raise ValueError(f"positions={self.positions!r}: expected 'learned' or 'sincos'")
        if self.positions == "sincos" and self.width % 4:
            raise ValueError(f"width={self.width}: sincos positions need a multiple of 4")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path={self.drop_path}: expected a rate in [0, 1)")
        super().__post_init__()

    def __call__(self, x: Images, *, train: bool = False) -> Features:
        """Return the pooled, then normalised tokens of the last block.

        Drop path is active with `train=True` and an rng stream "drop_path".
        """
        return self._encode(x, train)[0]

    def block_features(self, x: Images, *, train: bool = False) -> Float[Array, "depth batch features"]:
        """Return the pooled tokens of every block, before the final norm."""
        return self._encode(x, train)[1]

    @nn.compact
    def _encode(self, x: Array, train: bool) -> tuple[Array, Array]:
        block_class = nn.remat(Block, prevent_cse=not self.scan) if self.remat else Block
        mlp_width, init = self.mlp_width or 4 * self.width, truncated_normal(self.init_std)
        block = partial(block_class, self.heads, mlp_width, self.dtype, init)
        dropping = train and self.drop_path > 0 and self.has_rng("drop_path")
        rates = np.linspace(0, self.drop_path, self.depth, dtype=np.float32) if dropping else None

        def step(block: nn.Module, tokens: Array, rate: ArrayLike | None) -> tuple[Array, Array]:
            tokens = block(tokens, rate)
            return tokens, pool(tokens, self.pool)

        tokens = self._embed(x)
        if self.scan:
            scan = nn.scan(
                step,
                variable_axes={"params": 0},
                split_rngs={"params": True, "drop_path": True},
                length=self.depth,
            )
            tokens, features = scan(block(name="blocks"), tokens, rates)
        else:
            per_block = []
            for i in range(self.depth):
                rate = None if rates is None else rates[i]
                tokens, pooled = step(block(name=f"blocks_{i}"), tokens, rate)
                per_block.append(pooled)
            features = jnp.stack(per_block)
        return LayerNorm(name="norm")(pool(tokens, self.pool)), features

    def _embed(self, x: Array) -> Array:
        """Return the tokens of the patches, after the class token if any, with positions added."""
        batch, height, width, _ = x.shape
        init = truncated_normal(self.init_std)
        tokens = PatchEmbedding(
            self.patch, self.width, self.frozen_patch, self.dtype, init, name="patch_embedding"
        )(x)
        if self.pool == "token":
            class_token = self.param("class_token", init, (1, 1, self.width))
            class_token = jnp.broadcast_to(class_token.astype(tokens.dtype), (batch, 1, self.width))
            tokens = jnp.concatenate([class_token, tokens], axis=1)
        if self.positions == "learned":
            positions = self.param("position_embedding", init, (1, *tokens.shape[1:]))
        else:
            positions = sincos(height // self.patch, width // self.patch, self.width)
            positions = jnp.pad(positions, ((tokens.shape[1] - len(positions), 0), (0, 0)))[None]
        return tokens + positions.astype(tokens.dtype)


class PatchEmbedding(nn.Module):
    """Linear projection of non-overlapping patches: a strided convolution as one matrix product."""

    role: ClassVar[str] = "convolution"

    patch: int
    width: int
    frozen: bool
    dtype: DTypeLike | None
    kernel_init: Initializer = truncated_normal(0.02)

    @nn.compact
    def __call__(self, x: Images) -> Tokens:
        batch, height, width, channels = x.shape
        p = self.patch
        if height % p or width % p:
            raise ValueError(
                f"a {height}x{width} image does not divide into patches of {p}x{p}: "
                f"resize or pad it to a multiple of {p}, or choose another patch"
            )
        kernel = self._weight("kernel", self.kernel_init, (p, p, channels, self.width))
        bias = self._weight("bias", nn.initializers.zeros, (self.width,))
        x = x.reshape(batch, height // p, p, width // p, p, channels).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, -1, p * p * channels)
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        return x @ kernel.reshape(-1, self.width) + bias[None, None]

    def _weight(self, name: str, init: Initializer, shape: tuple[int, ...]) -> Array:
        if not self.frozen:
            return self.param(name, init, shape)
        return self.variable("frozen", name, lambda: init(self.make_rng("params"), shape)).value


class Block(nn.Module):
    """One pre-norm transformer block; `rate` is the drop path rate, None to disable it."""

    heads: int
    mlp_width: int
    dtype: DTypeLike | None
    kernel_init: Initializer = truncated_normal(0.02)

    @nn.compact
    def __call__(self, tokens: Tokens, rate: ArrayLike | None) -> Tokens:
        branches = {
            "attention": Attention(self.heads, self.dtype, self.kernel_init, name="attention"),
            "mlp": FeedForward(self.mlp_width, self.dtype, self.kernel_init, name="mlp"),
        }
        for name, branch in branches.items():
            update = branch(LayerNorm(dtype=self.dtype, name=f"norm_{name}")(tokens))
            tokens += update if rate is None else drop_path(self.make_rng("drop_path"), update, rate)
        return tokens


class Attention(nn.Module):
    """Multi-head self-attention."""

    heads: int
    dtype: DTypeLike | None
    kernel_init: Initializer = truncated_normal(0.02)

    @nn.compact
    def __call__(self, x: Tokens) -> Tokens:
        batch, tokens, width = x.shape
        Dense = partial(nn.Dense, dtype=self.dtype, kernel_init=self.kernel_init)
        qkv = Dense(3 * width, name="qkv")(x)
        q, k, v = jnp.split(qkv.reshape(batch, tokens, 3 * self.heads, -1), 3, axis=2)
        return Dense(width, name="out")(attend(q, k, v).reshape(batch, tokens, width))


class FeedForward(nn.Module):
    """Two layers with an exact GELU between them."""

    width: int
    dtype: DTypeLike | None
    kernel_init: Initializer = truncated_normal(0.02)

    @nn.compact
    def __call__(self, x: Tokens) -> Tokens:
        Dense = partial(nn.Dense, dtype=self.dtype, kernel_init=self.kernel_init)
        hidden = nn.gelu(Dense(self.width, name="up")(x), approximate=False)
        return Dense(x.shape[-1], name="down")(hidden)


def attend(q: Heads, k: Heads, v: Heads) -> Heads:
    """Softmax attention with products in the type of the inputs and a float32 softmax.

    Unlike in `jax.nn.dot_product_attention`, the logits are stored in the type of the inputs: in bfloat16
    they are a fifth of the memory traffic of a step of a large ViT.
    """
    logits = jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
    return jnp.einsum("bnts,bsnh->btnh", weights.astype(v.dtype), v)


def drop_path(key: Array, x: Tokens, rate: ArrayLike) -> Array:
    """Zero whole samples with probability `rate` and scale the others by 1 / (1 - rate)."""
    keep = 1.0 - jnp.asarray(rate)
    kept = jax.random.bernoulli(key, keep, (x.shape[0], 1, 1))
    return x * (kept / keep).astype(x.dtype)


def pool(tokens: Tokens, mode: str) -> Float[Array, "batch pooled"]:
    """Return the first token, the mean token, or the concatenated tokens, in float32."""
    if mode == "mean":
        return tokens.mean(axis=1, dtype=jnp.float32)
    return (tokens[:, 0] if mode == "token" else tokens.reshape(len(tokens), -1)).astype(jnp.float32)


def sincos(rows: int, columns: int, width: int) -> Float[Array, "positions features"]:
    """Return the fixed 2-D position embedding of MoCo-v3, [rows * columns, width].

    The quarters of a vector are sine and cosine of the row, then of the column, at frequencies
    10000^(-4i / width).
    """
    frequencies = 10_000.0 ** (-4 * np.arange(width // 4) / width)
    row, column = np.indices((rows, columns)).reshape(2, -1, 1) * frequencies
    return jnp.asarray(
        np.concatenate([np.sin(row), np.cos(row), np.sin(column), np.cos(column)], 1), jnp.float32
    )
