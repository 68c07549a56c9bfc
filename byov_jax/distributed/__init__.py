"""One method on many devices and many processes."""

from byov_jax.distributed.runner import AXIS as AXIS
from byov_jax.distributed.runner import MODES as MODES
from byov_jax.distributed.runner import Placed as Placed
from byov_jax.distributed.runner import Runner as Runner
from byov_jax.distributed.runner import build as build
from byov_jax.distributed.runner import local_rows as local_rows
from byov_jax.distributed.runner import put_rows as put_rows
