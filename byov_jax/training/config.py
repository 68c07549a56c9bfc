"""The config of a training: every key with its type, range, default and meaning, defined once.

From these classes come the checks, the error lines, `train --help` and the table in docs/training.md. A
config file returns any mapping, such as an `ml_collections.ConfigDict`; `Config.parse` makes it complete and
frozen.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from byov_jax.errors import ConfigError
from byov_jax.methods import TRAITS, Traits
from byov_jax.ranges import RANGES
from byov_jax.training import schema
from byov_jax.training.schema import Section, argument, require, setting


class Parallel(Section):
    """How devices share a step."""

    mode: Literal["auto", "plain", "sharded", "pmap"] = setting(
        "auto",
        "plain: one device; sharded: state and batch divided; pmap: a copy each; auto: sharded over all",
    )
    one_draw: bool = setting(False, "under pmap, draw the same weights on all devices")


class Data(Section):
    """The images."""

    source: str = setting(
        "fashion_mnist", "the embedded images, a folder, an .npz file, tfds:NAME, or the output of prepare"
    )
    loader: Literal["memory", "stream"] = setting(
        "memory", "memory: load all images; stream: decode and crop on the host while training"
    )
    workers: int = setting(
        -1,
        "processes that decode a stream; 0 for threads alone, -1 to choose by cores",
        ge=-1,
        may_change=True,
    )
    on_error: Literal["raise", "replace"] = setting(
        "replace", "what a stream does with an image that cannot be read", may_change=True
    )
    resize: int = setting(0, "side to which the images of a folder are resized; 0 keeps their size", ge=0)
    size: int = setting(0, "number of training images; read from the data", ge=0)
    image: tuple[int, ...] = setting((), "height, width, channels; read from the data")
    classes: int = setting(0, "number of classes; read from the data", ge=0)
    digest: str = setting("", "hash of the images' names or pixels and of the labels; read from the data")


class ViT(Section):
    """A vision transformer."""

    name: Literal["vit"] = setting("vit", "a vision transformer or a residual network")
    size: str = argument("a standard size and patch, such as B/16, instead of patch, width, depth and heads")
    patch: int = argument("side of a patch in pixels", ge=1)
    width: int = argument("features per token", ge=1)
    depth: int = argument("number of blocks", ge=1)
    heads: int = argument("attention heads; they divide the width", ge=1)
    mlp_width: int | None = argument("hidden features of a block's MLP; 4 x width if None", ge=1)
    pool: Literal["token", "mean", "concat"] = argument(
        "class token, mean of the patches, or patches concatenated"
    )
    init_std: float = argument("standard deviation of the initial weights", gt=0)
    positions: Literal["learned", "sincos"] = argument("the position embedding")
    drop_path: float = argument("rate of stochastic depth at the last block", ge=0, lt=1)
    frozen_patch: bool = argument("keep the random patch projection, as in MoCo-v3")
    scan: bool = argument("compile one block for all")
    remat: bool = argument("recompute activations in the backward pass to save memory")


class ResNet(Section):
    """A residual network."""

    name: Literal["resnet"] = setting("resnet", "a vision transformer or a residual network")
    depth: int = argument("18 or 50", ge=1)
    stages: tuple[int, ...] = argument("blocks per stage, instead of those of the depth", min_length=1)
    bottleneck: bool = argument("1x1, 3x3, 1x1 blocks, instead of those of the depth")
    width: int = argument("channels of the stem", ge=1)
    stem: Literal["imagenet", "small"] = argument("imagenet: 7x7, stride 4; small: 3x3")
    norm: Literal["batch", "group"] = argument("the norm")
    remat: bool = argument("recompute activations in the backward pass to save memory")


class Head(Section):
    """The projector or the predictor."""

    widths: tuple[Annotated[int, Field(ge=1)], ...] = setting(
        (4096, 256), "output features of each Dense layer", min_length=1
    )
    norm: Literal["batch", "layer", "none"] = setting("batch", "the norm of the hidden layers")
    output_bias: bool = setting(False, "add a bias to the last Dense")


class Views(Section):
    """The augmentations: a preset, and changes of it that hold for both views."""

    name: Literal["imagenet", "small_color", "small_gray"] = setting("small_gray", "the preset")
    size: int | None = argument("side of a view in pixels; None keeps the size of the image", ge=1)
    area: tuple[float, ...] = argument("range of the crop's fraction of the area")
    aspect: tuple[float, ...] = argument("range of the crop's width / height")
    flip: float = argument("probability of a horizontal flip", ge=0, le=1)
    jitter: float = argument("probability of the colour jitter", ge=0, le=1)
    brightness: float = argument("largest change of brightness", ge=0, le=1)
    contrast: float = argument("largest change of contrast", ge=0, le=1)
    saturation: float = argument("largest change of saturation", ge=0, le=1)
    hue: float = argument("largest rotation of the hue, as a fraction of a turn", ge=0, le=0.5)
    grayscale: float = argument("probability of dropping colour", ge=0, le=1)
    blur: float = argument("probability of a Gaussian blur", ge=0, le=1)
    blur_sigma: tuple[float, ...] = argument("range of the blur's standard deviation in pixels")
    blur_kernel: float = argument("width of the blur's kernel as a fraction of the height", gt=0, le=1)
    solarize: float = argument("probability of solarisation", ge=0, le=1)
    solarize_threshold: float = argument("value from which pixels are inverted", ge=0, le=1)


class Optimizer(Section):
    """What all optimizers take."""

    learning_rate: float = setting(1e-3, "peak of the learning rate, which then decays to 0", gt=0)
    warmup: int = setting(0, "steps in which the learning rate rises from 0", ge=0)
    weight_decay: float = argument("decay of kernels, Bayesian or not", ge=0)
    clip_norm: float | None = argument("largest norm of the means' gradient; None for no clipping", gt=0)


class AdamW(Optimizer):
    """The optimizer of the ViT recipes."""

    name: Literal["adamw"] = setting("adamw", "the optimizer of the means")
    b1: float = argument("decay of the first moment", ge=0, lt=1)
    b2: float = argument("decay of the second moment", ge=0, lt=1)
    eps: float = argument("added to the root of the second moment", gt=0)


class Lars(Optimizer):
    """The optimizer of BYOL's ResNet-50."""

    name: Literal["lars"] = setting("lars", "the optimizer of the means")
    momentum: float = argument("heavy-ball momentum", ge=0, lt=1)
    trust_coefficient: float = argument("eta in eta * |w| / |g|", gt=0)
    lr_after_momentum: bool = argument(
        "multiply by the learning rate after momentum, as DeepMind's BYOL does"
    )


class Variance(Section):
    """How the log-variances follow."""

    name: Literal["adam", "fixed"] = setting("adam", "adam: descend their gradient; fixed: keep them")
    learning_rate: float = setting(
        1e-3, "peak of Adam's rate for log_var, on the schedule of optimizer.learning_rate", gt=0
    )
    b1: float = setting(0.9, "decay of the first moment", ge=0, lt=1)
    b2: float = setting(0.95, "decay of the second moment", ge=0, lt=1)


class Guard(Section):
    """When a step is skipped, and when skipping ends the run."""

    patience: int = setting(20, "skipped steps in a row after which the run ends", ge=1, may_change=True)
    spike: float = setting(
        0.0,
        "also skip a step whose loss exceeds this multiple, at least 1, of its average; 0: never",
        within=RANGES["spike"],
    )


class Keep(Section):
    """Which checkpoints are kept."""

    last: int = setting(3, "number of newest checkpoints to keep", ge=1, may_change=True)
    every: int = setting(0, "also keep all multiples of this step; 0: none", ge=0, may_change=True)


class Config(Section):
    """Everything that decides a run."""

    method: Literal["byol", "byov", "supervised", "supervised_bbb"] = setting("byov", "the training method")
    seed: int = setting(0, "seed of everything random", ge=0, lt=2**32)
    steps: int = setting(1000, "optimizer steps of the whole training", ge=1)
    batch_size: int = setting(256, "images per step, over all devices", ge=1)
    accumulate: int = setting(
        1, "micro-batches per step; they divide batch_size", within=RANGES["accumulate"]
    )
    dtype: Literal["float32", "bfloat16"] = setting("float32", "compute type of the network")
    prng: Literal["threefry2x32", "rbg", "unsafe_rbg"] = setting("threefry2x32", "JAX's random generator")
    parallel: Parallel = Parallel()
    data: Data = Data()
    encoder: Annotated[ViT | ResNet, Field(discriminator="name")] = ViT()
    projector: Head = Head()
    predictor: Head = Head()
    views: Views = Views()
    optimizer: Annotated[AdamW | Lars, Field(discriminator="name")] = AdamW()
    variance: Variance = Variance()
    prior: Literal["standard", "teacher_mean", "teacher_moments"] = setting(
        "standard", "the distribution that the KL regularises the posterior towards"
    )
    where: str = setting(
        "all", "Bayesian parameters: all, no_conv, linear_only, or a regular expression on paths"
    )
    log_var: float = setting(-10.0, "initial log-variance of the posterior", within=RANGES["log_var"])
    beta_start: float = setting(0.0, "weight of the KL at the first step", within=RANGES["beta"])
    beta_end: float = setting(0.3, "weight of the KL at the last step", within=RANGES["beta"])
    beta_steps: int = setting(0, "steps from beta_start to beta_end; 0 for the whole training", ge=0)
    kl_norm: Literal["params", "dataset", "batches", "none"] = setting("params", "the KL's normaliser Z")
    tau: float = setting(
        0.99, "momentum of the teacher at the first step; it rises to 1", within=RANGES["tau"]
    )
    draws: int = setting(1, "weight draws per step", within=RANGES["draws"])
    draw_per_view: bool = setting(False, "draw weights for each view, instead of once for both")
    guard: Guard = Guard()
    keep: Keep = Keep()
    watchdog: float = setting(
        300.0, "seconds without progress after which a warning says why; 0: never", ge=0, may_change=True
    )
    log_every: int = setting(50, "steps between two lines of metrics.jsonl", ge=1)
    monitor_images: int = setting(1000, "most held-out images used for monitoring; 0 for all", ge=0)
    monitor_every: int = setting(0, "steps between two evaluations on held-out images; 0 for an epoch", ge=0)
    save_every: int = setting(
        0,
        "most steps that can be lost if the process is killed; 0 for an epoch",
        ge=0,
        may_change=True,
    )

    @property
    def traits(self) -> Traits:
        """What the method is: Bayesian, supervised, with a teacher."""
        return TRAITS[self.method]

    @classmethod
    def parse(cls, values: Any) -> "Config":
        """Complete and check any mapping; a ConfigError names the key, its value and what is allowed."""
        config = schema.validated(cls, values)
        config._check()
        return config

    def updated(self, changes: Mapping[str, Any]) -> "Config":
        """Return a copy with other values, nested as in a config file, checked again."""
        return self.parse(schema.merged(self.to_dict(), changes))

    def _check(self) -> None:
        """Check what depends on several keys."""
        steps, stream = self.steps, self.data.loader == "stream"
        warmup, size = self.optimizer.warmup, self.views.size
        require("optimizer.warmup", warmup, warmup < steps, f"shorter than the training of {steps} steps")
        annealing = self.beta_steps
        allowed = f"at most {steps}, the steps there are, or beta_end is never reached"
        require("beta_steps", annealing, annealing <= steps, allowed)
        spike = self.guard.spike
        refusal = RANGES["spike"].refusal(spike)
        require("guard.spike", spike, not refusal, refusal)
        divides = self.batch_size % self.accumulate == 0
        require("accumulate", self.accumulate, divides, f"a divisor of batch_size={self.batch_size}")
        resize = self.data.resize
        require("data.resize", resize, not (stream and resize), "0: streamed images are cropped")
        given = "size" not in self.views.model_fields_set or (size is not None and size > 0)
        require(
            "views.size", size, given or not stream, "the side of the crops that data.loader='stream' takes"
        )

    def check_data(self, *, devices: int = 1) -> None:
        """Check what depends on the data, which must be filled in, and on the number of devices."""
        batch, size = self.batch_size, self.data.size
        require("batch_size", batch, batch <= size, f"at most the {size} training images")
        plural = "s" if devices > 1 else ""
        require("batch_size", batch, batch % devices == 0, f"a multiple of the {devices} device{plural}")
        if self.traits.supervised and not self.data.classes:
            raise ConfigError(
                f"config.method={self.method!r} needs labels, and {self.data.source} has none: "
                "choose byol or byov, or arrange the images as CLASS/*.jpg"
            )
