"""Strict settings for every test: checked types and shapes, 8 simulated devices, no silent rank promotion."""

import os
from pathlib import Path

import jax
import jaxtyping
import pytest

# Nearly all of a test's time is compilation. These halve it, in the commands that tests start as well.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"  # the developer's own, that commands write to by default
if jax.__version_info__ < (0, 11):  # later ones end the process at a flag that they do not know
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jaxtyping.install_import_hook("byov_jax", "strict.check")


@pytest.fixture(autouse=True, scope="module")
def _drop_old_programs():
    """Drops compiled programs before Linux refuses more memory maps, at which the compiler would crash."""
    yield
    maps, limit = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
    if limit.exists() and len(maps.read_bytes().splitlines()) > 0.4 * int(limit.read_text()):
        jax.clear_caches()


@pytest.fixture
def optimized():
    """Compiles as users do, where rounding is what is measured or a test computes for long."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def one_device(monkeypatch):
    """Trains on one of the simulated devices: all eight compile slowly."""
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
