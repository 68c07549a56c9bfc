"""Strict settings for every test: checked types and shapes, 8 simulated devices, no silent rank promotion."""

import os

import jax
import jaxtyping

# Nearly all of the time of a test is compilation: this halves it, for the commands that tests start as well.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jaxtyping.install_import_hook("byov_jax", "strict.check")
