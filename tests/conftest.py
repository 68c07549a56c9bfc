"""Strict settings for every test: checked types and shapes, 8 simulated devices, no silent rank promotion."""

import jax
import jaxtyping

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jaxtyping.install_import_hook("byov_jax", "strict.check")
