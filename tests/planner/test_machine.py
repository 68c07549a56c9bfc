"""TPU slices, the local machine, and invalid topology names."""

import os

import jax
import pytest

from byov_jax.planner import chips, machine


@pytest.mark.parametrize("name", ["v5e", "v5e:", "v5e:4", "v9:2x2", "4x4", "v5e:axb"])
def test_an_unknown_topology_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=f"^--topology={name}: expected CHIP:SHAPE, one of v5e:") as raised:
        machine.tpu(name)
    assert "v5e:{1x1,2x2,2x4,4x4," in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_libtpu_names_the_extra_to_install(monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'byov-jax\[plan\]'"):
        machine.tpu("v5e:4x4")


def test_a_missing_library_file_is_an_error(monkeypatch):
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/nowhere/libtpu.so")
    with pytest.raises(ValueError, match=r"TPU_LIBRARY_PATH=/nowhere/libtpu\.so is not a file"):
        machine.tpu("v5e:4x4")


def test_this_machine_is_measured_and_its_devices_share_it():
    whole = machine.local("float32")
    assert len(whole.devices) == 8
    chip = whole.chip
    assert chip.source == "measured on this machine"
    assert 1e6 < chip.bandwidth < 1e12
    assert 1e6 < chip.flops < 1e14
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert chip.memory == pages // 8
    half = machine.first_devices(whole, 4)
    assert list(half.devices) == jax.devices()[:4]
    assert (half.chip.memory, half.chip.flops) == (2 * chip.memory, 2 * chip.flops)


def test_use_cpu_keeps_the_environment_of_the_user(monkeypatch):
    for key in (*machine.LIBTPU_ENVIRONMENT, "XLA_FLAGS"):
        monkeypatch.setenv(key, "mine")
    machine.use_cpu()
    assert {os.environ[key] for key in machine.LIBTPU_ENVIRONMENT} == {"mine"}
    assert "XLA_FLAGS" not in os.environ
    assert jax.config.jax_platforms == "cpu"


needs_libtpu = pytest.mark.skipif(
    not os.environ.get("TPU_LIBRARY_PATH") and machine.importlib.util.find_spec("libtpu") is None,
    reason="no libtpu: pip install 'byov-jax[plan]'",
)


@needs_libtpu
@pytest.mark.parametrize("name", chips.TPUS)
def test_slices_of_every_chip(name, monkeypatch):
    for key, value in machine.LIBTPU_ENVIRONMENT.items():
        monkeypatch.setenv(key, value)
    chip = chips.TPUS[name]
    counts = [len(machine.tpu(f"{name}:{shape}").devices) for shape in chip.shapes]
    assert counts == sorted(set(counts))
    with pytest.raises(ValueError, match=f"{name} comes as {chip.shapes[0]}, "):
        machine.tpu(f"{name}:3x5x7")


@needs_libtpu
def test_a_pod_slice_has_hosts_of_four_chips(monkeypatch):
    for key, value in machine.LIBTPU_ENVIRONMENT.items():
        monkeypatch.setenv(key, value)
    pod = machine.tpu("v5e:16x16")
    assert (len(pod.devices), pod.hosts, pod.chip.name) == (256, 64, "v5e")
