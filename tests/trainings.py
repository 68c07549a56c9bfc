"""A tiny training in its run directory, and comparisons of two of them."""

import copy
import functools
import json

import jax
import numpy as np
from PIL import Image

from byov_jax.checkpoints import checkpointer
from byov_jax.data.dataset import Dataset, Images
from byov_jax.training import build, callbacks, run_directory
from byov_jax.training import trainer as runs
from byov_jax.training.metrics_log import MetricsLog

CONFIG = {
    "method": "supervised_bbb",
    "steps": 7,
    "batch_size": 16,
    "encoder": {
        "name": "vit",
        "patch": 7,
        "width": 8,
        "depth": 1,
        "heads": 2,
        "mlp_width": 8,
        "drop_path": 0.2,
    },
    "projector": {"widths": (8, 8)},
    "predictor": {"widths": (8, 8)},
    "views": {"name": "small_gray", "size": 14},
    "log_every": 1,
    "monitor_every": 3,
    "save_every": 6,
}
"""Three steps are an epoch. It has a posterior, and compiles in half the time of self-supervised methods."""

BESIDE = ("seed", "keep", "watchdog", "log_every", "monitor_every", "monitor_images", "save_every")
"""Config keys that do not change the compiled program."""

TIMES = ("seconds", "images_per_second")


def images(count, seed):
    rng = np.random.default_rng(seed)
    label = (np.arange(count) % 3).astype(np.int32)
    return Images(
        (60 * label[:, None, None, None] + rng.integers(0, 80, (count, 14, 14, 1))).astype(np.uint8), label
    )


DATA = Dataset(images(48, 0), images(24, 1), ("a", "b", "c"))


def write_photos(root, train=16, val=4):
    """Writes photographs of three classes to a folder; `train` and `val` are the number of each."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for name in "abc":
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (18 + i, 24, 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.jpg")
    return root


def prepared(dataset=DATA, **changes):
    """The config with changes, ready for `trainer.train`."""
    return runs.resolve_config(copy.deepcopy(CONFIG) | changes, dataset)


def write_untrained(run):
    """A run directory with everything that a training has written before its first step, and a state."""
    config = prepared(method="byov", prior="teacher_moments")
    run_directory.create(run, config)
    example = jax.tree.map(lambda x: np.zeros((1, *x.shape[1:]), x.dtype), build.batch(config))
    state = build.method(config, build.network(config)).init(jax.random.key(1), example)
    checkpointer.save(run / run_directory.CHECKPOINTS, 0, state, metadata={"config": config.to_dict()})
    log = MetricsLog(run, step=-1)
    for step in range(5):
        log.metrics({"step": step, "epoch": step / 3, "loss": 1.0 / (step + 1), "probe": None})
        log.posterior({"step": step, "layers": {"encoder": {"sigma_mean": 0.1, "snr_max": 2.0}}})
    log.close()


def lines(run, name=run_directory.METRICS):
    """What a file says, but for the times."""
    found = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in found]


def state(run):
    """The whole state at the newest checkpoint, in NumPy arrays."""
    config = run_directory.read_config(run)
    found = checkpointer.restore_newest(run / run_directory.CHECKPOINTS, _like(config))
    assert found is not None
    return jax.device_get(found)


@functools.cache
def _like(config):
    method = build.method(config, build.network(config))
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), build.batch(config))
    return jax.eval_shape(method.init, jax.random.key(0), example)


def assert_same(run, other):
    """Every line and every leaf, to the last bit."""
    for name in (run_directory.METRICS, run_directory.POSTERIOR):
        assert lines(run, name) == lines(other, name)
    assert_same_state(state(run), state(other))


def assert_same_state(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, one), two in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        assert one.dtype == two.dtype, path
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes(), jax.tree_util.keystr(path)


class Stop:
    """The callbacks `step` and `stop` that stop a training after a step."""

    def __init__(self, after):
        self.after, self.reached = after, 0

    def step(self, step):
        self.reached = step

    def __call__(self):
        return int(self.reached == self.after)


def stopping(after, **others):
    """Callbacks that stop a training after a step."""
    stop = Stop(after)
    return callbacks.Callbacks(step=stop.step, stop=stop, **others)


class Programs:
    """Builds every program once: nearly all of the time of a tiny training is tracing and compilation."""

    def __init__(self):
        self._build, self._built = build.runner, {}

    def __call__(self, config):
        known = run_directory.identity(config.updated({"data": {"digest": "any"}}))
        compiled = {name: value for name, value in known.items() if name not in BESIDE}
        key = json.dumps(compiled, sort_keys=True), tuple(jax.devices())
        if key not in self._built:
            self._built[key] = self._build(config)
        return self._built[key]
