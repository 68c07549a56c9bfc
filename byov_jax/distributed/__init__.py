"""Run one method on many devices and processes.

    runner = distributed.build(lambda layout: methods.byov(..., layout=layout), batch, mode="sharded")
    state = runner.init(key)
    state, info = runner.step(state, runner.put_batch(part), key)      # part: the rows of this process

Every mode runs the same step and counts the KL once. "sharded" divides the state among the devices and
draws one set of weights per global batch, as the paper does, each device drawing only its shard of the noise;
batch statistics are those of the global batch. With one device it is plain `jit`. "pmap" replicates the
state, draws other weights on every device, unless `one_draw`, and averages gradients and batch statistics.
"""

from collections.abc import Callable, Sequence

import jax
from jax.sharding import AxisType

from byov_jax.distributed import pmapped, sharded
from byov_jax.distributed.runner import AXIS as AXIS
from byov_jax.distributed.runner import MODES as MODES
from byov_jax.distributed.runner import Placed as Placed
from byov_jax.distributed.runner import Runner as Runner
from byov_jax.methods import Method
from byov_jax.methods.layout import Layout
from byov_jax.methods.objectives import Batch


def build(
    make_method: Callable[[Layout], Method],
    batch: Batch,
    *,
    mode: str = "auto",
    devices: Sequence[jax.Device] | None = None,
    one_draw: bool = False,
    prng: str = "threefry2x32",
    min_sharded_size: int = sharded.MIN_SHARDED_SIZE,
) -> Runner:
    """Build the runner of a method.

    Args:
      make_method: returns the method for a layout: `lambda layout: methods.byov(..., layout=layout)`. Under
        pmap its batch norms need `axis_name="data"`.
      batch: a global batch, of which only shapes and dtypes matter.
      mode: "sharded", "pmap", "plain" for the first device alone, "auto" for sharded on all devices.
      devices: by default all devices of all processes.
      one_draw: under pmap, draw the same weights on every device.
      prng: the PRNG implementation of the keys passed to `init` and `step`.
      min_sharded_size: arrays with fewer elements are replicated.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
    chosen = list(devices or jax.devices())[: 1 if mode == "plain" else None]
    mesh = jax.make_mesh((len(chosen),), (AXIS,), axis_types=(AxisType.Auto,), devices=chosen)
    size = batch.image.shape[0]
    if size % mesh.size:
        raise ValueError(f"a batch of {size} images cannot be divided among {mesh.size} devices")
    if mode == "pmap":
        layout = pmapped.layout(AXIS, one_draw=one_draw)
        return pmapped.PmapRunner(mesh, batch, prng, make_method(layout))
    layout = sharded.layout(mesh, min_size=min_sharded_size) if mesh.size > 1 else Layout()
    return sharded.ShardedRunner(mesh, batch, prng, make_method(layout), min_sharded_size)
